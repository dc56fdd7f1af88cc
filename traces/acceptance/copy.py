"""Copied text, as in prompt lookup, where a run of copied tokens tends to continue."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from servesim.contracts import AcceptanceModel, Request, acceptance_models

from . import luck, vector


@dataclass(frozen=True)
class CopyParams:
    """A Markov chain along the output. Defaults are fitted to n-gram drafts on code edits (vLLM PR 24344, k = 5:
    acceptance rates per draft by position .81 .74 .70 .68 .66; 2.96 tokens per step, since 15% of the tokens have no
    draft)."""

    chances: str = "0.24/0.84/0.96/0.95"
    """Chances that a token's draft is correct after 0, 1, 2, ... consecutive correct drafts; the last value applies to
    all longer runs."""
    none: float = 0.8
    """Chance that there is no draft to propose while no run is in progress."""

    def __post_init__(self) -> None:
        vector("chances", self.chances)
        vector("none", str(self.none))


@acceptance_models.register("copy")
class Copy(AcceptanceModel):
    """Model in which a token's chance of being a copy of earlier text depends on the run of copies before it, not on
    step boundaries, since the chain is drawn along the output. While no run is in progress, a lookup may find
    nothing."""

    Params = CopyParams
    params: CopyParams

    def __init__(self, params: CopyParams, seed: int) -> None:
        super().__init__(params, seed)
        self._chances = tuple(vector("chances", params.chances))

    def _run(self, row: int, position: int) -> int:
        """Return the number of consecutive correct tokens that end just before `position`."""
        return _runs(self.seed, self._chances, row, position // _CHUNK)[position % _CHUNK]

    def accepted(self, request: Request, position: int, drafts: int, width: int = 1) -> int:
        for j in range(drafts):
            if self._run(request.row, position + j + 1) == 0:
                return j
        return drafts

    def available(self, request: Request, position: int, k: int) -> int:
        if self._run(request.row, position) > 0:
            return k
        return 0 if luck(self.seed, "no draft", request.row, position) < self.params.none else k

    def rates(self, k: int) -> list[float]:
        """Return acceptance rates estimated from many outputs, each generated in steps of k drafts."""
        counts, drafts = [0] * k, 0
        for row in range(100):
            request, position = Request(row, "rates", 1, 1, 0), 0
            while position < 4 * _CHUNK:
                found = self.available(request, position, k)
                accepted = self.accepted(request, position, found)
                drafts += found > 0
                for j in range(accepted):
                    counts[j] += 1
                position += 1 + accepted
        return [count / max(drafts, 1) for count in counts]


_CHUNK = 256


@lru_cache(maxsize=4096)
def _runs(seed: int, chances: tuple[float, ...], row: int, chunk: int) -> list[int]:
    """Return, for each position of a chunk, the length of the run that ends just before it; runs do not span
    requests."""
    first = chunk * _CHUNK
    run = _after(seed, chances, row, first - 1, _runs(seed, chances, row, chunk - 1)[-1]) if chunk else 0
    runs = [run]
    for position in range(first, first + _CHUNK - 1):
        run = _after(seed, chances, row, position, run)
        runs.append(run)
    return runs


def _after(seed: int, chances: tuple[float, ...], row: int, position: int, run: int) -> int:
    """Return the length of the run that ends at `position`, if the run just before it has length `run`."""
    chance = chances[min(run, len(chances) - 1)]
    return run + 1 if luck(seed, "accept", row, position) < chance else 0
