"""Conditional disaggregation of NVIDIA Dynamo.

1.6.1 (lib/kv-router/src/conditional_disagg.rs, policy isl_bounding): the router looks which decode worker it would
choose, and sends a request there if its uncached part is short and a small share of it; otherwise the decode worker is
chosen again when the prompt is computed. Not modeled: policies prefill_load and isl_or_load, and
decode_busy_threshold.

0.1 to 0.4 (examples/llm/components/disagg_router.py): a decode worker gets each request, and puts it into the queue of
prefill workers unless its uncached part is short or that queue is long.
"""

from __future__ import annotations

from dataclasses import dataclass

from servesim.contracts.decider import Decider, Outlook, deciders
from servesim.contracts.params import check_least, check_most
from servesim.contracts.request import Request


@dataclass(frozen=True)
class DynamoParams:
    """Fields of --router-conditional-disagg-config, with the defaults of ai-dynamo 1.6.1."""

    eff_isl_threshold: int = 2048
    """Number of uncached tokens from which on a prompt is computed apart."""
    eff_isl_ratio_threshold: float = 0.7
    """Share of uncached tokens from which on a prompt is computed apart."""

    def __post_init__(self) -> None:
        check_least(self, 0, "eff_isl_threshold", "eff_isl_ratio_threshold")
        check_most(self, 1, "eff_isl_ratio_threshold")


@deciders.register("dynamo")
class Dynamo(Decider):
    """Decider that has a prompt computed apart unless few of its tokens, and a small share of them, are uncached
    (ai-dynamo 1.6.1)."""

    Params = DynamoParams
    reserves = False
    needs_cached = True  # --router-conditional-disagg requires --router-mode=kv

    def apart(self, request: Request, outlook: Outlook) -> bool:
        share = outlook.uncached / max(request.num_tokens, 1)
        few = outlook.uncached < self.params.eff_isl_threshold
        return not (few and share < self.params.eff_isl_ratio_threshold)


@dataclass(frozen=True)
class Dynamo0Params:
    """Settings of the disaggregated router, with its defaults."""

    max_local_prefill_length: int = 1000
    """Largest number of uncached tokens that a decode worker computes itself."""
    max_prefill_queue_size: int = 2
    """Number of waiting prompts from which on decode workers compute all prompts themselves."""

    def __post_init__(self) -> None:
        check_least(self, 0, "max_local_prefill_length", "max_prefill_queue_size")


@deciders.register("dynamo-0")
class Dynamo0(Decider):
    """Decider that has a prompt computed apart if many of its tokens are uncached and few prompts wait (ai-dynamo 0.1
    to 0.4)."""

    Params = Dynamo0Params

    def apart(self, request: Request, outlook: Outlook) -> bool:
        params: Dynamo0Params = self.params
        long = outlook.uncached > params.max_local_prefill_length
        return long and outlook.num_queued < params.max_prefill_queue_size
