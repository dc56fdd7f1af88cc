"""No KV cache: every iteration recomputes every request from its first token.

The naive baseline (`use_cache=False`): a reply of n tokens to a prompt of p costs about n (p + n / 2) token
computations instead of p + n.
"""

from __future__ import annotations

from servesim.contracts.scheduler import schedulers

from .selective import Selective


@schedulers.register("no-cache")
class NoCache(Selective):
    """First-come, first-served scheduler that processes whole requests each time. Memory is counted as if the KV were
    kept, because it must be available while the iteration runs."""

    paper = "the textbook loop; Hugging Face transformers' generate(use_cache=False)"
    attention = "fused"
    layout = "recompute"
