"""torch.cuda as far as timing needs it, without a GPU: calls run on the processor, the clock is made up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any


class FakeCuda:
    """Everything launched eagerly, or captured, takes `call_us` a call; a capture of a call in `refused` fails."""

    def __init__(self, available: bool = True, capability: tuple[int, int] = (9, 0)) -> None:
        self.available, self.capability = available, capability
        self.us = 0.0
        self.replay_us = 1000.0
        self.capturing: Any = None
        self.log: list[str] = []
        self.refuse = False
        self.side = False

    def is_available(self) -> bool:
        return self.available

    def get_device_properties(self, index: int) -> Any:
        major, minor = self.capability
        return SimpleNamespace(
            name="NVIDIA H200", major=major, minor=minor, L2_cache_size=60 << 20, total_memory=140 << 30
        )

    def mem_get_info(self) -> tuple[int, int]:
        return 139 << 30, 140 << 30

    def empty_cache(self) -> None:
        self.log.append("empty_cache")

    def synchronize(self) -> None:
        assert self.capturing is None, "synchronised while capturing"

    def current_stream(self) -> Any:
        return SimpleNamespace(wait_stream=lambda other: None)

    Stream = current_stream

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        self.side = True
        yield
        self.side = False

    def CUDAGraph(self) -> Any:
        def replay() -> None:
            self.log.append("replay")
            self.us += self.replay_us

        return SimpleNamespace(replay=replay, reset=lambda: self.log.append("reset"))

    @contextmanager
    def graph(self, graph: Any) -> Iterator[None]:
        self.capturing = graph
        try:
            yield
            if self.refuse:
                raise RuntimeError("operation not permitted when stream is capturing")
        finally:
            self.capturing = None

    def Event(self, enable_timing: bool = False) -> Any:
        assert enable_timing
        event = SimpleNamespace(at=0.0, synchronize=lambda: None)

        def record() -> None:
            event.at = self.us

        event.record = record
        event.elapsed_time = lambda end: (end.at - event.at) / 1e3
        return event
