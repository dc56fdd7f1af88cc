"""Event loop in virtual time: instead of waiting, its clock jumps to the next timer."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any


class _Jump(selectors.DefaultSelector):
    """Selector that never waits: it moves the clock by the time that it should have waited."""

    ahead = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        found = super().select(0)
        if not found and timeout is None and len(self.get_map()) == 1:  # the loop's own
            raise RuntimeError("something waits, but nothing is left to happen")
        if not found and timeout:
            self.ahead += timeout
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """Event loop whose time in seconds starts at 0 and passes only when there is nothing to do. Everything must happen
    in this process: a client on the other end of a socket would live in real time. Raises RuntimeError where it would
    never end."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.ahead
