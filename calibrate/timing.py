"""Timing of a kernel: rotated buffers, CUDA graphs, medians.

A point is a list of calls of one kernel on different buffers, so that no call finds its weights in the cache. On a GPU,
10 to 20 of them are captured in a CUDA graph, which is replayed three times to warm up and ten times between events. On
a CPU, the calls run in a loop timed by the process's own CPU time, which other programs on the machine do not affect.
"""

from __future__ import annotations

import platform
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median
from typing import Any

from servesim.errors import UserError

Call = Callable[[], object]
MOST_CALLS = 20
_WARM_REPLAYS, _REPLAYS = 3, 10
_WINDOW_S = {"cuda": 0.02, "cpu": 0.004}
"""Minimum duration of a replay or loop in seconds; calls are repeated to reach it."""
_CPU_TURNS = 4
"""Number of buffers used in turn on a CPU, like the layers of a small model whose weights and KV share the last-level
cache."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds of one call."""

    median_us: float
    p10_us: float
    p90_us: float
    samples: int
    method: str
    """Timing method: "graph" for replays of a CUDA graph, "eager" for calls launched one by one, "loop" for the CPU
    time of a loop."""
    eager_us: float | None = None
    """Time of calls launched one by one, host time included (GPU only)."""

    @classmethod
    def of(cls, times: Sequence[float], method: str, eager_us: float | None = None) -> Timing:
        ordered = sorted(times)
        tenth = len(ordered) // 10
        return cls(median(ordered), ordered[tenth], ordered[-1 - tenth], len(ordered), method, eager_us)


class Device(ABC):
    """Device on which kernels are timed."""

    kind: str
    name: str
    cache_bytes: int
    target: str
    """Name of the torch device."""

    @abstractmethod
    def time(self, calls: Sequence[Call]) -> Timing:
        """Time one of `calls`, which differ only in their buffers."""

    @abstractmethod
    def free_bytes(self) -> int:
        """Return the memory that can still be allocated."""

    @abstractmethod
    def total_bytes(self) -> int:
        """Return the total memory."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the device, driver and versions, for the provenance of a table."""

    @abstractmethod
    def reference_us(self) -> float:
        """Return the time of a fixed GEMM, which shows drift."""

    @abstractmethod
    def bandwidth(self) -> float:
        """Return the bandwidth of a copy on the device in bytes per second, reads plus writes."""

    def clock_mhz(self) -> int | None:
        """Return the current clock in MHz, or None if it cannot be read."""
        return None

    def release(self) -> None:
        """Release cached memory."""
        return None

    def copies(self, size: int) -> int:
        """Return the number of buffers of `size` bytes that, used in turn, evict each other from the cache (twice
        over)."""
        return max(1, min(MOST_CALLS, ceil(2 * self.cache_bytes / max(size, 1))))


def rotated(calls: Sequence[Call], seconds: float, window: float) -> list[Call]:
    """Repeat `calls` of `seconds` each until they fill the window, using every buffer at least once."""
    count = max(len(calls), min(MOST_CALLS, ceil(window / max(seconds, 1e-9))))
    return [calls[i % len(calls)] for i in range(count)]


class _TorchDevice(Device):
    """Device functions that are the same for all torch devices."""

    _torch: Any
    _copied: int
    _square: tuple[int, str]

    def reference_us(self) -> float:
        width, dtype = self._square
        kind = getattr(self._torch, dtype)
        a, b = (self._torch.randn(width, width, device=self.target, dtype=kind) for _ in range(2))
        return self.time([lambda: a @ b]).median_us

    def bandwidth(self) -> float:
        torch, size = self._torch, self._copied
        source, target = (torch.ones(size, dtype=torch.uint8, device=self.target) for _ in range(2))
        return 2.0 * size / (self.time([lambda: target.copy_(source)]).median_us * 1e-6)


class CpuDevice(_TorchDevice):
    """CPU with `threads` threads."""

    kind, target, cache_bytes = "cpu", "cpu", 0
    _copied, _square = 32 << 20, (384, "float32")

    def __init__(self, torch: Any, threads: int = 1) -> None:
        self._torch = torch
        self.threads = threads
        torch.set_num_threads(threads)
        self.name = _processor()

    def time(self, calls: Sequence[Call]) -> Timing:
        clock = time.process_time if self.threads == 1 else time.perf_counter
        for call in calls:
            call()
        began = clock()
        calls[0]()
        turn = rotated(calls, clock() - began, _WINDOW_S["cpu"])
        times: list[float] = []
        while len(times) < 3 or (len(times) < 9 and sum(times) * len(turn) < 5e4):
            began = clock()
            for call in turn:
                call()
            times.append((clock() - began) / len(turn) * 1e6)
        return Timing.of(times, "loop")

    def copies(self, size: int) -> int:
        return _CPU_TURNS

    def free_bytes(self) -> int:
        return _meminfo("MemAvailable")

    def total_bytes(self) -> int:
        return _meminfo("MemTotal")

    def describe(self) -> dict[str, Any]:
        return {
            "device": self.name,
            "device_kind": "cpu",
            "threads": self.threads,
            "torch": self._torch.__version__,
            "system": platform.platform(),
        }


class CudaDevice(_TorchDevice):
    """CUDA GPU; its settings are left unchanged."""

    kind = "cuda"
    _copied, _square = 256 << 20, (4096, "bfloat16")

    def __init__(self, torch: Any, cuda: Any = None, target: str = "cuda") -> None:
        """Open a GPU. In a dry run, `cuda` replaces `torch.cuda`, and `target` replaces the device of the tensors."""
        self._torch, self._cuda, self.target = torch, cuda or torch.cuda, target
        if not self._cuda.is_available():
            raise UserError(
                f"no CUDA GPU: torch {torch.__version__} sees none (nvidia-smi shows what the driver sees; a torch "
                "built for CPUs has +cpu in its version); --device cpu profiles the processor"
            )
        properties = self._cuda.get_device_properties(0)
        self.name = str(properties.name)
        self.capability = (int(properties.major), int(properties.minor))
        self.cache_bytes = int(getattr(properties, "L2_cache_size", 0)) or 64 << 20
        self._total = int(properties.total_memory)

    def time(self, calls: Sequence[Call]) -> Timing:
        cuda = self._cuda
        eager_s = self._warm(calls)
        turn = rotated(calls, eager_s, _WINDOW_S["cuda"])
        try:
            graph = cuda.CUDAGraph()
            with cuda.graph(graph):
                for call in turn:
                    call()
        except self._out_of_memory:
            raise
        except RuntimeError:  # part of the call cannot be captured
            cuda.synchronize()
            return Timing.of(self._timed(lambda: [call() for call in turn], len(turn)), "eager", eager_s * 1e6)
        for _ in range(_WARM_REPLAYS):
            graph.replay()
        cuda.synchronize()
        timing = Timing.of(self._timed(graph.replay, len(turn)), "graph", eager_s * 1e6)
        graph.reset()
        return timing

    @property
    def _out_of_memory(self) -> type[Exception]:
        error: type[Exception] = self._torch.OutOfMemoryError
        return error

    def _warm(self, calls: Sequence[Call]) -> float:
        """Load and tune the kernels on a separate stream, as capturing requires, and return the seconds that one
        call takes."""
        cuda = self._cuda
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            for call in calls[:3]:
                call()
        cuda.current_stream().wait_stream(side)
        cuda.synchronize()
        began = time.perf_counter()
        for call in calls:
            call()
        cuda.synchronize()
        return (time.perf_counter() - began) / len(calls)

    def _timed(self, run: Callable[[], object], calls: int) -> list[float]:
        cuda = self._cuda
        start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        times: list[float] = []
        for _ in range(_REPLAYS):
            start.record()
            run()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) * 1e3 / calls)
            if len(times) >= 5 and sum(times) * calls > 5e5:  # half a second per point is enough
                break
        return times

    def free_bytes(self) -> int:
        self.release()
        return int(self._cuda.mem_get_info()[0])

    def total_bytes(self) -> int:
        return self._total

    def release(self) -> None:
        self._cuda.empty_cache()

    def clock_mhz(self) -> int | None:
        text = nvidia_smi("clocks.sm")
        return int(text) if text.isdigit() else None

    def describe(self) -> dict[str, Any]:
        return {
            "device": self.name,
            "device_kind": "cuda",
            "capability": "sm_{}{}".format(*self.capability),
            "driver": nvidia_smi("driver_version"),
            "clock_mhz": self.clock_mhz(),
            "power_limit_w": nvidia_smi("power.limit"),
            "torch": self._torch.__version__,
            "cuda": self._torch.version.cuda,
            "system": platform.platform(),
        }


def nvidia_smi(field: str) -> str:
    """Return one value for the first GPU, without its unit, or an empty string if the value is unavailable."""
    command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def open_device(kind: str, threads: int = 1) -> Device:
    """Open the device to time on; raise UserError if torch or the GPU is missing."""
    torch = import_torch()
    if kind == "cpu":
        return CpuDevice(torch, threads)
    if kind == "cuda":
        return CudaDevice(torch)
    raise UserError(f"unknown device {kind!r} (choose from: cpu, cuda)")


def import_torch() -> Any:
    """Import torch; if it is missing, raise an error with installation instructions."""
    try:
        import torch
    except ImportError as error:
        raise UserError(f"this needs torch ({error}): pip install 'servesim[calibrate]'") from None
    return torch


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def _meminfo(name: str) -> int:
    try:
        with open("/proc/meminfo") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
    except (OSError, StopIteration):
        return 8 << 30
