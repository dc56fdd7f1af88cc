"""Per-group block tables over runs of speculative-decoding steps, in which requests gain several tokens each."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import itemgetter

from mypy_extensions import mypyc_attr

from servesim.contracts.request import Request
from servesim.engine.fast.kv.growth import most_rounds
from servesim.engine.fast.memory import LockstepMemory
from servesim.policies.kv.hybrid import Hybrid


@mypyc_attr(allow_interpreted_subclasses=True)
class GroupRounds(LockstepMemory):
    """Rounds in which requests with a block table per group of layers gain several tokens."""

    def __init__(self, kv: Hybrid) -> None:
        super().__init__()
        self._kv = kv
        self._size = kv.block_size
        self._groups, self.copies = len(kv.windows), kv._counting
        self._windows = [(group, window - 1) for group, window in enumerate(kv.windows) if window is not None]
        self._ahead: bool = kv.params.hash_lookahead_tokens > 0  # a block's hash covers tokens beyond it

    def rounds_that_fit(
        self, requests: Sequence[Request], tokens: Sequence[Sequence[int]], ahead: int, limit: int
    ) -> int:
        kv, bs = self._kv, self._size
        if self._ahead:
            return 0
        held = [len(kv._tables[request][0]) for request in requests]

        def needed(k: int) -> int:
            ends = [min(known[k - 1] + ahead, kv.max_model_len) for known in tokens]
            return sum([max((end + bs - 1) // bs - have, 0) for end, have in zip(ends, held, strict=True)])

        return most_rounds(needed, kv.num_free_blocks() // self._groups, limit)

    def grow_rounds(
        self, requests: Sequence[Request], tokens: Sequence[Sequence[int]], ahead: int, k: int
    ) -> list[tuple[int, int]]:
        kv, bs = self._kv, self._size
        due: list[tuple[int, Request, int]] = []  # (round, request, tokens known after the round)
        for request, known in zip(requests, tokens, strict=True):
            rounds = set(self._rounds_taking(request, known, ahead, k))
            slid = kv._slid[request]
            for _, reach in self._windows:
                first = max(slid - reach, 0) // bs + 1
                for block in range(first, max(known[k - 1] - 1 - reach, 0) // bs + 1):
                    rounds.add(bisect_left(known, block * bs + reach + 1))
            due += [(i, request, known[i]) for i in sorted(rounds)]
        due.sort(key=itemgetter(0))
        grown: dict[int, int] = {}
        given: dict[int, int] = {}
        for i, request, known_then in due:
            if request.content is not None:
                kv._offer(request, known_then - 1, known_then - 1)
            before, tables = kv.num_free_blocks(), kv._tables[request]
            kv._slide(request, known_then - 1)
            more = kv._blocks(min(known_then + ahead, kv.max_model_len)) - len(tables[0])
            if more > 0:
                for table, window in zip(tables, kv.windows, strict=True):
                    kv._extend(table, window, more)
            net = before - kv.num_free_blocks()
            grown[i + 1] = grown.get(i + 1, 0) + net * bs
            given[i + 1] = given.get(i + 1, 0) + (max(more, 0) * self.copies - net) * bs
        for request, known in zip(requests, tokens, strict=True):
            kv._slid[request] = max(known[k - 1] - 1, kv._slid[request])
            kv._offer(request, known[k - 1], known[k - 1])
        self.given_back = list(given.items())
        return list(grown.items())

    def _rounds_taking(self, request: Request, known: Sequence[int], ahead: int, k: int) -> list[int]:
        """Return the rounds (from 0) in which a request needs more blocks."""
        bs, kv = self._size, self._kv
        blocks, rounds = len(kv._tables[request][0]), []
        most = min(kv._blocks(known[k - 1] + ahead), kv._blocks(kv.max_model_len))
        while blocks < most:
            i = bisect_right(known, blocks * bs - ahead)
            blocks = min(kv._blocks(known[i] + ahead), kv._blocks(kv.max_model_len))
            rounds.append(i)
        return rounds
