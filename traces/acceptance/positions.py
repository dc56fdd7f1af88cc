"""Acceptance chances by draft position, as counted by engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import exp
from statistics import NormalDist

from servesim.contracts import Request, acceptance_models
from servesim.draws import uniform_one

from . import ByPosition, running_product, vector

GOLDEN = 0.6180339887498949
NODES = [NormalDist().inv_cdf((i + 0.5) / 128) for i in range(128)]
"""Normal quantiles that represent equally frequent kinds of requests."""


@dataclass(frozen=True)
class PositionsParams:
    """Acceptance rates in one of two forms, such as 0.73/0.52/0.36. The last conditional rate also applies to all later
    positions."""

    marginal: str = ""
    """Number of accepted drafts at each position per verification (vLLM: accepted_per_pos / num_drafts), which must not
    increase from one position to the next. The acceptance length is 1 + their sum."""
    conditional: str = ""
    """Chance of acceptance at each position, given that the drafts at all previous positions are accepted."""
    spread: float = 0.0
    """Spread over requests: coefficient of variation of the number of passes per token (1 / acceptance length), which
    is what drafts add to the spread of TPOT. The rates above are averages over all drafts."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.spread < 1.0:
            raise ValueError(f"spread is {self.spread} but must be at least 0 and below 1")
        if bool(self.marginal) == bool(self.conditional):
            raise ValueError("specify marginal=0.73/0.52/... or conditional=0.73/0.71/...")
        chances = conditional(self)
        if self.spread:
            spread_out(tuple(chances), self.spread)


def conditional(params: PositionsParams) -> list[float]:
    """Return the conditional chances."""
    if params.conditional:
        return vector("conditional", params.conditional)
    marginal = vector("marginal", params.marginal)
    if any(later > earlier for earlier, later in pairwise(marginal)):
        raise ValueError(f"marginal is {params.marginal!r}: rates by position must not increase (conditional ones may)")
    before = [1.0, *marginal[:-1]]
    return [rate / earlier if earlier else 0.0 for rate, earlier in zip(marginal, before, strict=True)]


@acceptance_models.register("positions")
class Positions(ByPosition):
    """Acceptance rates by draft position. With `spread`, a request's odds are the overall odds times a lognormal
    factor. Factors come in pairs, one as far above the median as the other is below it (on a log scale), and are evenly
    distributed, so that even a few requests together have about these rates."""

    Params = PositionsParams
    params: PositionsParams

    def __init__(self, params: PositionsParams, seed: int) -> None:
        super().__init__(params, seed)
        self._chances = conditional(params)
        self._sigma, self._shift = spread_out(tuple(self._chances), params.spread) if params.spread else (0.0, 0.0)
        self._first = uniform_one(seed, "acceptance spread", 0)
        self._of_row: dict[int, Sequence[float]] = {}

    def conditional(self, request: Request) -> Sequence[float]:
        if not self._sigma:
            return self._chances
        chances = self._of_row.get(request.row)
        if chances is None:
            place = (self._first + request.row // 2 * GOLDEN) % 1.0
            z = NormalDist().inv_cdf(min(max(place, 1e-9), 1.0 - 1e-9))
            z = -z if request.row % 2 else z
            chances = self._of_row[request.row] = shifted(self._chances, self._shift + self._sigma * z)
        return chances

    def rates(self, k: int) -> list[float]:
        if not self._sigma:
            return running_product(self._chances, k)
        kinds = [shifted(self._chances, self._shift + self._sigma * z) for z in NODES]
        passes = [1.0 / length(kind) for kind in kinds]  # kinds with fewer correct drafts need more passes
        rates = [running_product(kind, k) for kind in kinds]
        return [sum(p * rate[j] for p, rate in zip(passes, rates, strict=True)) / sum(passes) for j in range(k)]


def length(chances: Sequence[float]) -> float:
    """Return the acceptance length."""
    return 1.0 + sum(running_product(chances, len(chances)))


def shifted(chances: Sequence[float], by: float) -> list[float]:
    """Return chances whose odds are those of `chances` multiplied by exp(by)."""
    odds = exp(by)
    return [chance * odds / (1.0 - chance + chance * odds) for chance in chances]


@cache
def spread_out(chances: tuple[float, ...], spread: float) -> tuple[float, float]:
    """Return (sigma, shift) such that, if each request's odds are multiplied by exp(shift + sigma z) with z normal, the
    number of passes per token has the mean implied by `chances` and the relative standard deviation `spread`. Raise
    ValueError if `spread` is too large."""
    mean = 1.0 / length(chances)

    def passes(sigma: float, shift: float) -> list[float]:
        return [1.0 / length(shifted(chances, shift + sigma * z)) for z in NODES]

    def shift_of(sigma: float) -> float:
        return _root(lambda shift: mean - sum(passes(sigma, shift)) / len(NODES), -30.0, 30.0)

    def reached(sigma: float) -> float:
        found = passes(sigma, shift_of(sigma))
        return float((sum((p - mean) ** 2 for p in found) / len(found)) ** 0.5 / mean)

    widest = 8.0
    if reached(widest) < spread:
        raise ValueError(f"spread is {spread}: with these rates it can be at most {reached(widest):.2f}")
    sigma = _root(lambda x: reached(x) - spread, 0.0, widest)
    return sigma, shift_of(sigma)


def _root(rising: Callable[[float], float], low: float, high: float) -> float:
    """Find the zero of an increasing function by bisection."""
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0.0 else (low, middle)
    return (low + high) / 2
