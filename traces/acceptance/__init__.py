"""Acceptance models: whether drafts are correct is part of the workload, so it is the same for all compared
policies."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from servesim.contracts import AcceptanceModel
from servesim.contracts.request import Request
from servesim.draws import uniform

_CHUNK = 256
_ROWS, _STARTS = 32, 128


@lru_cache(maxsize=4096)
def _chunk(seed: int, purpose: str, row: int, chunk: int) -> list[float]:
    import numpy as np

    first = chunk * _CHUNK
    drawn: list[float] = uniform(seed, purpose, row, np.arange(first, first + _CHUNK)).tolist()
    return drawn


@lru_cache(maxsize=256)
def _delivered(seed: int, block: int, chunk: int, chances: tuple[float, ...]) -> list[bytes]:
    """Return, for each row of a block of adjacent rows and each position of a chunk, the number of tokens delivered by
    a step that starts there: consecutive correct drafts, plus one. Computing all rows of a block costs little more than
    computing one row."""
    import numpy as np

    rows, first = np.arange(block * _ROWS, (block + 1) * _ROWS), chunk * _STARTS
    draws = uniform(seed, "accept", rows[:, None], np.arange(first, first + _STARTS + len(chances)))
    right = np.ones((_ROWS, _STARTS), dtype=bool)
    delivered = np.ones((_ROWS, _STARTS), dtype=np.uint8)
    for j, chance in enumerate(chances):
        right &= draws[:, j : _STARTS + j] < chance
        delivered += right
    return [row.tobytes() for row in delivered]


def luck(seed: int, purpose: str, row: int, position: int) -> float:
    """Return the single uniform draw of an output token."""
    return _chunk(seed, purpose, row, position // _CHUNK)[position % _CHUNK]


class ByPosition(AcceptanceModel):
    """Model in which draft j, if all drafts before it are accepted, is accepted if the single draw of its output token
    falls below a chance that depends on j (and possibly on the request). Candidates beyond the first are independent
    guesses."""

    def conditional(self, request: Request) -> Sequence[float]:
        """Return the chances that drafts 1, 2, ... are accepted, given that all previous drafts are; the last value
        applies to all later drafts."""
        raise NotImplementedError

    def _chain(self, request: Request, drafts: int, width: int) -> list[float]:
        """Return, for each position, the chance that it has a correct candidate, given that all previous positions have
        one."""
        chances = self.conditional(request)
        last = len(chances) - 1
        kinds = [chances[j] if j < last else chances[last] for j in range(drafts)]
        return kinds if width == 1 else [1.0 - (1.0 - chance) ** width for chance in kinds]

    def walk(self, request: Request, position: int, until: int, drafts: int, width: int = 1) -> list[int]:
        if type(self).accepted is not ByPosition.accepted or drafts > 254:
            return super().walk(request, position, until, drafts, width)
        chances, gains = tuple(self._chain(request, drafts, width)), list[int]()
        block, row = divmod(request.row, _ROWS)
        while position < until:
            chunk, index = divmod(position, _STARTS)
            first = position - index
            stop = min(until - first, _STARTS)
            delivered = _delivered(self.seed, block, chunk, chances)[row]
            while index < stop:
                gained = delivered[index]
                gains.append(gained)
                index += gained
            position = first + index
        return gains

    def accepted(self, request: Request, position: int, drafts: int, width: int = 1) -> int:
        chances = self.conditional(request)
        last = len(chances) - 1
        chunk, index = divmod(position, _CHUNK)
        draws = _chunk(self.seed, "accept", request.row, chunk)
        for j in range(drafts):
            chance = chances[j] if j < last else chances[last]
            if width > 1:
                chance = 1.0 - (1.0 - chance) ** width
            if index == _CHUNK:
                chunk, index = chunk + 1, 0
                draws = _chunk(self.seed, "accept", request.row, chunk)
            if draws[index] >= chance:
                return j
            index += 1
        return drafts


def running_product(chances: Sequence[float], k: int) -> list[float]:
    """Return the marginal rates of positions 1 to k, given the conditional ones; the last conditional rate applies to
    all later positions."""
    rates, whole = [], 1.0
    for j in range(k):
        whole *= chances[min(j, len(chances) - 1)]
        rates.append(whole)
    return rates


def vector(what: str, text: str) -> list[float]:
    """Parse probabilities written as in 0.7/0.5/0.3."""
    try:
        values = [float(part) for part in text.split("/")]
    except ValueError:
        raise ValueError(f"{what} is {text!r}: write probabilities as 0.7/0.5/0.3") from None
    if not all(0.0 <= value <= 1.0 for value in values):
        raise ValueError(f"{what} is {text!r} but must be probabilities from 0 to 1")
    return values
