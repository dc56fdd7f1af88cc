"""Mixed requests: drafting for code is easier than for prose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from servesim.contracts import Request, acceptance_models
from servesim.draws import uniform_one

from . import ByPosition, running_product, vector


@dataclass(frozen=True)
class MixtureParams:
    """Kinds of requests."""

    alphas: str = "0.5/0.9"
    """Chance that a draft is accepted, for each kind of request."""
    weights: str = "0.5/0.5"
    """Share of requests of each kind; the shares sum to 1."""

    def __post_init__(self) -> None:
        weights = vector("weights", self.weights)
        if len(weights) != len(vector("alphas", self.alphas)) or abs(sum(weights) - 1.0) > 1e-9:
            raise ValueError(f"weights are {self.weights!r} but must be one per alpha and sum to 1")


@acceptance_models.register("mixture")
class Mixture(ByPosition):
    """Requests of several kinds: a kind is drawn for each row, and drafts are independent within a kind."""

    Params = MixtureParams
    params: MixtureParams

    def __init__(self, params: MixtureParams, seed: int) -> None:
        super().__init__(params, seed)
        self._alphas = [(alpha,) for alpha in vector("alphas", params.alphas)]
        self._weights = vector("weights", params.weights)
        self._kind: dict[int, tuple[float]] = {}

    def conditional(self, request: Request) -> Sequence[float]:
        kind = self._kind.get(request.row)
        if kind is None:
            drawn = uniform_one(self.seed, "acceptance kind", request.row)
            index = sum(drawn >= bound for bound in list(accumulate(self._weights))[:-1])
            kind = self._kind[request.row] = self._alphas[index]
        return kind

    def rates(self, k: int) -> list[float]:
        kinds = [running_product(alpha, k) for alpha in self._alphas]
        return [sum(w * kind[j] for w, kind in zip(self._weights, kinds, strict=True)) for j in range(k)]
