"""A world of asyncio whose clock nothing real moves: it jumps to the next timer when nothing is left to do.

A second of sleep takes no time and none comes late, however busy the machine is. Server and client share the loop;
bytes between them go through memory.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from tests.support.stub_server import Stub

T = TypeVar("T")


class _Jumping(selectors.DefaultSelector):
    """Never waits: where nothing is ready, the time that it was to wait is over at once."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "all wait for one another"
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop by that clock."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Return the seconds since it began."""
        return self._jumping.now


class _Writer:
    """The end of a connection that is written to: what the other one reads."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader, self.transport = reader, self
        self._closed = False

    def write(self, data: bytes) -> None:
        if not self._closed:
            self._reader.feed_data(data)

    async def drain(self) -> None:
        await asyncio.sleep(0)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._reader.feed_eof()

    abort = close


def in_virtual_time(patch: pytest.MonkeyPatch, stub: Stub, talk: Coroutine[Any, Any, T]) -> T:
    """Return what `talk` does, whose every connection is one to the stub, in a world of that clock."""
    loop = VirtualLoop()
    serving = set()

    async def connect(*_: object, limit: int, **__: object) -> tuple[asyncio.StreamReader, _Writer]:
        here, there = asyncio.StreamReader(limit), asyncio.StreamReader()
        serving.add(asyncio.ensure_future(stub.serve(there, _Writer(here))))  # type: ignore[arg-type]
        return here, _Writer(there)

    async def whole() -> T:
        stub._gate, stub._api = asyncio.Semaphore(stub.slots), asyncio.Lock()  # type: ignore[attr-defined]
        try:
            return await talk
        finally:
            for task in serving:
                task.cancel()
            await asyncio.gather(*serving, return_exceptions=True)

    with patch.context() as here:
        here.setattr(time, "monotonic", loop.time)
        here.setattr(time, "process_time", lambda: 0.0)
        here.setattr(time, "monotonic_ns", lambda: round(loop.time() * 1e9))
        here.setattr(asyncio, "open_connection", connect)
        try:
            return loop.run_until_complete(whole())
        finally:
            loop.close()
