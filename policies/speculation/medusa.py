"""Medusa heads (arXiv 2401.10774): position j is drafted by head j from the target's last hidden state."""

from __future__ import annotations

from dataclasses import dataclass, replace

from servesim.contracts import Batch, speculators
from servesim.hardware.draft import DraftModel, medusa_head

from ._drafter import Drafter, DrafterParams


@dataclass(frozen=True)
class MedusaParams(DrafterParams):
    """Depth and breadth of the draft tree."""

    width: int = 1
    """Candidates per position; the tree is full, with width ** depth leaves. Siblings are modeled as independent
    guesses, each as good as the first, which is an upper bound."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.width <= 16 or self.width**self.k > 4096:
            raise ValueError(
                f"width is {self.width} but must be at least 1 and give at most 4096 leaves with k = {self.k}"
            )


@speculators.register("medusa")
class Medusa(Drafter):
    """Drafter with k small heads over the sampling sequences, without draft KV or sequential passes."""

    Params = MedusaParams
    params: MedusaParams
    # Vicuna-7B, acceptance length 2.31 with trees on an A100 (Spec-Bench): conditional 0.6, 0.55, 0.5
    acceptance = "positions:conditional=0.6/0.55/0.5"

    @property
    def width(self) -> int:  # type: ignore[override]
        return self.params.width

    def model(self) -> DraftModel:
        return medusa_head(self.target)

    def verified(self, depth: int) -> int:
        return sum(self.params.width**level for level in range(1, depth + 1))

    def depth(self, drafts: int) -> int:
        depth = 0
        while self.verified(depth + 1) <= drafts:
            depth += 1
        return depth

    def passes(self, batch: Batch, k: int) -> list[Batch]:
        rows = batch.sampled
        return [replace(Batch(rows), sampled=rows)] * k if rows else []

    def follows(self) -> bool:
        return type(self).passes is Medusa.passes
