"""Acceptance of every draft with the same chance, independent of the tokens before it (Leviathan et al., ICML 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from servesim.contracts import Request, acceptance_models

from . import ByPosition, running_product, vector


@dataclass(frozen=True)
class IndependentParams:
    """Acceptance chance."""

    alpha: float = 0.7
    """Chance that a draft is accepted if all previous drafts in its step were."""

    def __post_init__(self) -> None:
        vector("alpha", str(self.alpha))


@acceptance_models.register("independent")
class Independent(ByPosition):
    """Independent drafts: with k drafts, the mean acceptance length is (1 - alpha^(k+1)) / (1 - alpha)."""

    Params = IndependentParams
    params: IndependentParams

    def conditional(self, request: Request) -> Sequence[float]:
        return (self.params.alpha,)

    def rates(self, k: int) -> list[float]:
        return running_product((self.params.alpha,), k)


def expected_tokens(alpha: float, k: int) -> float:
    """Return the mean number of tokens of a step with k drafts, including the target's own token (Leviathan et al.,
    equation 1)."""
    return k + 1.0 if alpha == 1.0 else (1.0 - alpha ** (k + 1)) / (1.0 - alpha)
