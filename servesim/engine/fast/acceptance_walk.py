"""Token counts of a request after each future step if all steps verify the same number of drafts. Acceptance is known
in advance."""

from __future__ import annotations

from servesim.contracts.acceptance import AcceptanceModel
from servesim.contracts.request import Request

AHEAD = 256  # tokens
DEEPEST = 254
"""Maximum depth of drafts: the number of tokens that a step delivers must fit in a byte."""


class Walk:
    """Numbers of tokens that successive steps deliver to a request with `tokens` known tokens: `gains[index]`,
    `gains[index + 1]`, ..."""

    __slots__ = ("_until", "depth", "gains", "index", "tokens")

    def __init__(self, depth: int, tokens: int) -> None:
        self.depth = depth
        self.tokens = self._until = tokens
        self.gains = b""
        self.index = 0

    @staticmethod
    def of(request: Request, tokens: int, depth: int) -> Walk:
        """Return the walk of a request that starts from `tokens` known tokens, in steps with drafts `depth` deep."""
        walk = request._walk
        if not isinstance(walk, Walk) or walk.tokens != tokens or walk.depth != depth:
            walk = request._walk = Walk(depth, tokens)
        return walk

    def delivers(self, tokens: int, depth: int, gained: int) -> bool:
        """Return whether the next step starts from `tokens` known tokens with that depth and delivers `gained`
        tokens."""
        known = self.tokens == tokens and self.depth == depth and self.index < len(self.gains)
        return known and self.gains[self.index] == gained

    def see(self, request: Request, first: int, steps: int, acceptance: AcceptanceModel, width: int) -> int:
        """Return how many of `steps` steps, starting with index `first`, do not end the request. Compute the gains of
        these steps and of the next one."""
        need = first + steps + 1
        while len(self.gains) < need and self._until < request._end_tokens:
            start, end = self._until - request.prompt_len, request._end_tokens - request.prompt_len
            gains = acceptance.walk(request, start, min(start + AHEAD, end), self.depth, width)
            self.gains += bytes(gains)
            self._until += sum(gains)
        return min(steps, len(self.gains) - first - 1) if self._until >= request._end_tokens else steps
