"""Token budget of a step."""

from __future__ import annotations


class Budget:
    """Tokens left in a step, both as scheduled and as model inputs (which include drafters' extra slots)."""

    __slots__ = ("_inputs", "_tokens", "extra", "left")

    def __init__(self, tokens: int, inputs: int, extra: int) -> None:
        self._tokens, self._inputs, self.extra = tokens, inputs - extra, extra
        self.left = tokens if tokens < self._inputs else self._inputs

    def take(self, n: int, requests: int = 1) -> None:
        self._tokens -= n
        self._inputs -= n + self.extra * requests
        self.left = self._tokens if self._tokens < self._inputs else self._inputs

    def give_back(self, n: int) -> None:
        if n:
            self._tokens += n
            self._inputs += n + self.extra
            self.left = min(self._tokens, self._inputs)
