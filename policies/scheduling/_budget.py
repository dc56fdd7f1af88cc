"""The token budget of a step."""

from __future__ import annotations


class Budget:
    """Tokens left in a step: to schedule, and as inputs to the model, drafters' extra slots included."""

    __slots__ = ("_extra", "_inputs", "_tokens", "left")

    def __init__(self, tokens: int, inputs: int, extra: int) -> None:
        self._tokens, self._inputs, self._extra = tokens, inputs - extra, extra
        self.left = min(self._tokens, self._inputs)

    def take(self, n: int) -> None:
        self._tokens -= n
        self._inputs -= n + self._extra
        self.left = min(self._tokens, self._inputs)

    def give_back(self, n: int) -> None:
        if n:
            self._tokens += n
            self._inputs += n + self._extra
            self.left = min(self._tokens, self._inputs)
