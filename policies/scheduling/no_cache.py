"""No KV cache at all: every iteration computes every request again from its first token.

The naive baseline (`use_cache=False`): a reply of n tokens to a prompt of p costs about n (p + n / 2) token
computations instead of p + n.
"""

from __future__ import annotations

from servesim.contracts.scheduler import schedulers

from .selective import Selective


@schedulers.register("no-cache")
class NoCache(Selective):
    """First come, first served, whole requests each time. Memory is counted as if the KV stayed: it must be there
    while the iteration runs."""

    paper = "the textbook loop; Hugging Face transformers' generate(use_cache=False)"
    attention = "fused"
    layout = "recompute"
