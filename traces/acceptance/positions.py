"""Chances by draft position, as engines count them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from servesim.contracts import Request, acceptance_models

from . import ByPosition, running_product, vector


@dataclass(frozen=True)
class PositionsParams:
    """One of the two, as 0.73/0.52/0.36. Beyond the last position its conditional chance goes on."""

    marginal: str = ""
    """Accepted drafts of each position over verifications (vLLM: accepted_per_pos / num_drafts); never rises. The
    acceptance length is 1 + their sum."""
    conditional: str = ""
    """Chance of each position, those before it accepted."""

    def __post_init__(self) -> None:
        if bool(self.marginal) == bool(self.conditional):
            raise ValueError("give marginal=0.73/0.52/... or conditional=0.73/0.71/...")
        conditional(self)


def conditional(params: PositionsParams) -> list[float]:
    """Conditional chances."""
    if params.conditional:
        return vector("conditional", params.conditional)
    marginal = vector("marginal", params.marginal)
    if any(later > earlier for earlier, later in pairwise(marginal)):
        raise ValueError(f"marginal is {params.marginal!r}: rates by position never rise (conditional ones may)")
    before = [1.0, *marginal[:-1]]
    return [rate / earlier if earlier else 0.0 for rate, earlier in zip(marginal, before, strict=True)]


@acceptance_models.register("positions")
class Positions(ByPosition):
    """Acceptance rates by draft position."""

    Params = PositionsParams
    params: PositionsParams

    def __init__(self, params: PositionsParams, seed: int) -> None:
        super().__init__(params, seed)
        self._chances = conditional(params)

    def conditional(self, request: Request) -> Sequence[float]:
        return self._chances

    def rates(self, k: int) -> list[float]:
        return running_product(self._chances, k)
