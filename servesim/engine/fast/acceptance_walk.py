"""Token counts of a request after each future step if all steps verify the same number of drafts. Acceptance is known
in advance."""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from servesim.contracts.acceptance import AcceptanceModel
from servesim.contracts.request import Request
from servesim.records.columns import Rows

AHEAD = 256  # tokens
DEEPEST = 254
"""Maximum depth of drafts: the number of tokens that a step delivers must fit in a byte."""


class Walk:
    """Numbers of tokens that successive steps deliver to a request with `tokens` known tokens: `gains[index]`,
    `gains[index + 1]`, ..."""

    __slots__ = ("_counts", "depth", "gains", "index", "known", "tokens")

    def __init__(self, depth: int, tokens: int) -> None:
        self.depth = depth
        self.tokens = tokens
        self.gains = b""
        self.known = [tokens]
        """Known tokens before each step, and after the last one."""
        self._counts: Rows | None = None
        self.index = 0

    @property
    def counts(self) -> Rows:
        """`known` as an array."""
        if self._counts is None:
            self._counts = np.array(self.known, dtype=np.int64)
        return self._counts

    @staticmethod
    def of(request: Request, tokens: int, depth: int) -> Walk:
        """Return the walk of a request that starts from `tokens` known tokens, in steps with drafts `depth` deep."""
        walk = request._walk
        if not isinstance(walk, Walk) or walk.tokens != tokens or walk.depth != depth:
            walk = request._walk = Walk(depth, tokens)
        return walk

    def delivers(self, tokens: int, after: int) -> bool:
        """Return whether the next step starts from `tokens` known tokens and leads to `after`."""
        return self.tokens == tokens and self.index < len(self.gains) and self.known[self.index + 1] == after

    def see(self, request: Request, first: int, steps: int, acceptance: AcceptanceModel, width: int) -> int:
        """Return how many of `steps` steps, starting with index `first`, do not end the request. Compute the gains of
        these steps and of the next one."""
        need, until = first + steps + 1, self.known[-1]
        while len(self.gains) < need and until < request._end_tokens:
            start, end = until - request.prompt_len, request._end_tokens - request.prompt_len
            gains = acceptance.walk(request, start, min(start + AHEAD, end), self.depth, width)
            self.gains += bytes(gains)
            self.known += list(accumulate(gains, initial=until))[1:]
            self._counts = None
            until = self.known[-1]
        return min(steps, len(self.gains) - first - 1) if until >= request._end_tokens else steps
