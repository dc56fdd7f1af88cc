"""Identities of the blocks that requests fill, for memory that looks up KV by its content."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import chain
from typing import Final, overload

from servesim.contracts.kv_events import key_of
from servesim.contracts.request import Request, State
from servesim.workload.content import RunContent

NUMBERS: Final = 32
"""Bits of a key that hold the number of its block in the prompt; those before say which run it is of."""


class Keys(Sequence[Hashable]):
    """Identities of blocks of a prompt, in order, as runs: a block is identified by the run that it ends in, which
    stands for all before, too, and by its number in the prompt.

    `runs`: (run << NUMBERS, number of its first block here, number after its last), in order.
    """

    __slots__ = ("runs",)

    def __init__(self, runs: list[tuple[int, int, int]]) -> None:
        self.runs = runs

    def __len__(self) -> int:
        return sum(stop - first for _, first, stop in self.runs)

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(range(run + first, run + stop) for run, first, stop in self.runs)

    def __reversed__(self) -> Iterator[int]:
        return chain.from_iterable(range(run + stop - 1, run + first - 1, -1) for run, first, stop in self.runs[::-1])

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> Keys: ...

    def __getitem__(self, index: int | slice) -> int | Keys:
        if isinstance(index, slice):
            first, stop, step = index.indices(len(self))
            assert step == 1, "keys are cut into consecutive ones"
            return self._part(first, stop)
        number = range(len(self))[index]
        return next(iter(self._part(number, number + 1)))

    def _part(self, begin: int, end: int) -> Keys:
        part = list[tuple[int, int, int]]()
        for run, first, stop in self.runs:
            a, b = max(first, first + begin), min(stop, first + end)
            if a < b:
                part.append((run, a, b))
            begin, end = begin - (stop - first), end - (stop - first)
        return Keys(part)


def meet(one: Sequence[Hashable], other: Sequence[Hashable]) -> bool:
    """Return whether some block is in both."""
    if not (isinstance(one, Keys) and isinstance(other, Keys)):
        return not {*one}.isdisjoint(other)
    mine = {run: (first, stop) for run, first, stop in one.runs}
    return any(run in mine and first < mine[run][1] and mine[run][0] < stop for run, first, stop in other.runs)


class ContentKeys:
    """Identities of requests' blocks of `block_tokens` tokens, in order. If the trace does not give a request's
    content, only the request itself can find its blocks."""

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._keys: dict[Request, Keys | list[Hashable]] = {}
        self._forget_at = 256

    def of(self, request: Request, count: int) -> Sequence[Hashable]:
        """Return the identities of at least the first `count` blocks of a request: Keys, or a list if its content is
        not told in runs. It is the same object each time, which grows at its end."""
        keys = self._keys.get(request)
        if keys is None:
            content = request.content
            in_runs = content is None or (isinstance(content, RunContent) and not request.salt)
            keys = self._keys[request] = Keys([]) if in_runs else []
        if isinstance(keys, Keys):
            self._extend(keys.runs, request, count)
        elif len(keys) < count:
            size, content = self.block_tokens, request.content
            assert content is not None
            ends = range((len(keys) + 1) * size, count * size + 1, size)
            keys.extend([key_of(content.prefix_key(end), request.salt) for end in ends])
        return keys

    def _extend(self, runs: list[tuple[int, int, int]], request: Request, count: int) -> None:
        """Extend the runs of a request to `count` blocks."""
        known = runs[-1][2] if runs else 0
        if known >= count:
            return
        content = request.content
        if content is None:  # runs numbered below those of a trace's content
            runs[:] = [(-((request.row << 20 | request.sample + 1) + 1) << NUMBERS, 0, count)]
            return
        assert isinstance(content, RunContent)
        for number, stop in content.block_runs(known, count, self.block_tokens):
            run = number << NUMBERS
            if runs and runs[-1][0] == run:
                runs[-1] = run, runs[-1][1], stop
            else:
                runs.append((run, known, stop))
            known = stop

    def gone(self) -> list[Request]:
        """Forget and return the requests that have left. This is done only when many are kept; otherwise, return an
        empty list."""
        if len(self._keys) < self._forget_at:
            return []
        left = [request for request in self._keys if request.state >= State.FINISHED]
        for request in left:
            del self._keys[request]
        self._forget_at = 2 * len(self._keys) + 256
        return left

    def requests(self) -> list[Request]:
        """Return the requests whose identities are kept."""
        return list(self._keys)
