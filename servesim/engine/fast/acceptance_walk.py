"""Where a request stands after each step to come, if all verify as many drafts: acceptance is known beforehand."""

from __future__ import annotations

from servesim.contracts.acceptance import AcceptanceModel
from servesim.contracts.request import Request

AHEAD = 256  # tokens
DEEPEST = 254
"""Drafts in a row: what a step delivers fits a byte."""


class Walk:
    """From `tokens` known tokens on successive steps deliver `gains[index]`, `gains[index + 1]`, ..."""

    __slots__ = ("_until", "depth", "gains", "index", "tokens")

    def __init__(self, depth: int, tokens: int) -> None:
        self.depth = depth
        self.tokens = self._until = tokens
        self.gains = b""
        self.index = 0

    @staticmethod
    def of(request: Request, tokens: int, depth: int) -> Walk:
        """The walk of a request in steps of drafts `depth` deep, from `tokens` on."""
        walk = request._walk
        if not isinstance(walk, Walk) or walk.tokens != tokens or walk.depth != depth:
            walk = request._walk = Walk(depth, tokens)
        return walk

    def delivers(self, tokens: int, depth: int, gained: int) -> bool:
        """Whether its next step is from `tokens` on, in steps of that depth, and brings `gained` tokens."""
        known = self.tokens == tokens and self.depth == depth and self.index < len(self.gains)
        return known and self.gains[self.index] == gained

    def see(self, request: Request, first: int, steps: int, acceptance: AcceptanceModel, width: int) -> int:
        """How many of `steps` steps from that of index `first` on do not end the request. Their gains are there, and
        that of the next step."""
        need = first + steps + 1
        while len(self.gains) < need and self._until < request._end_tokens:
            start, end = self._until - request.prompt_len, request._end_tokens - request.prompt_len
            gains = acceptance.walk(request, start, min(start + AHEAD, end), self.depth, width)
            self.gains += bytes(gains)
            self._until += sum(gains)
        return min(steps, len(self.gains) - first - 1) if self._until >= request._end_tokens else steps
