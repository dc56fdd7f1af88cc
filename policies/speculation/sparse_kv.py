"""Self-drafting over a sparse KV cache (MagicDec, arXiv 2408.11049): the target drafts for itself.

Drafting reads only attention sinks and the most recent tokens, so that a draft costs no more than reading the weights,
however long the context.
"""

from __future__ import annotations

from dataclasses import dataclass

from servesim.contracts import Batch, speculators
from servesim.contracts.params import check_least
from servesim.hardware.draft import DraftModel

from ._drafter import Drafter, DrafterParams


@dataclass(frozen=True)
class SparseKvParams(DrafterParams):
    """Size of the context that drafting reads."""

    budget: int = 512
    """Tokens of context that a draft pass reads."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 1, "budget")


@speculators.register("sparse-kv")
class SparseKv(Drafter):
    """Drafter that makes k passes of one token per sequence through the whole target. This pays off if contexts are
    long and batches large, because verification then reads the KV that drafting skips."""

    Params = SparseKvParams
    params: SparseKvParams
    acceptance = "independent:alpha=0.85"

    def model(self) -> DraftModel:
        return DraftModel(self.target, owns_lm_head=False, shares_layers=True)

    def passes(self, batch: Batch, k: int) -> list[Batch]:
        n = batch.sampled
        read = min(batch.sampled_context, n * self.params.budget)
        longest = min(batch.decode_context_max, self.params.budget)
        return [Batch.decodes(n, read, longest=longest)] * k if n else []
