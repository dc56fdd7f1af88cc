"""From the settings of an offload to the host memory behind each replica, what must be known of it, and its figures."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from servesim.contracts import KVAllocator, Scheduler, build_params
from servesim.contracts.params import check_least
from servesim.contracts.router import Role
from servesim.engine.core import EngineCore
from servesim.engine.offload import Direction, Offload
from servesim.engine.offload_memory import POLICIES
from servesim.errors import UserError, shown
from servesim.hardware import Gpu
from servesim.metrics.distribution import describe
from servesim.metrics.requests import MS, SECOND, Requests, per
from servesim.run.scenario import Scenario

PCIE_SHARE = 50 / 64
"""Share of a PCIe link's nominal bandwidth that copies of KV get in one direction: about 50 GB/s were measured on an
H100 (PCIe 5.0 x16, 64 GB/s; vLLM's blog of 2026-01-08, blocks of 2 MB). Both directions at once got 83 GB/s together,
17 % less than twice that, which is not modeled."""
UNITS = {"": 1, "B": 1, **{f"{prefix}B": 10 ** (3 * (i + 1)) for i, prefix in enumerate("kMGT")}}
UNITS |= {f"{prefix}iB": 2 ** (10 * (i + 1)) for i, prefix in enumerate("KMGT")}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*([A-Za-z]*)\s*")


def size_in_bytes(text: str) -> int:
    """Return bytes of a size such as 64GiB, 1.5TB or 1e9. ValueError where it is none."""
    found = _SIZE.fullmatch(text)
    if found is None or found[2] not in UNITS:
        raise ValueError(f"{shown(text)} is no size: a number and one of {', '.join(list(UNITS)[1:])}, such as 64GiB")
    return int(float(found[1]) * UNITS[found[2]])


@dataclass(frozen=True)
class VllmOffloadParams:
    """Settings of vLLM's offloading connector."""

    cpu: str | float = ""
    """Host memory of a replica, for all its GPUs together (vLLM's --kv-offloading-size), such as 64GiB."""
    eviction_policy: Literal["lru", "arc"] = "lru"
    """Which blocks go first."""
    block_size_factor: int = 1
    """GPU blocks of a block in host memory."""
    told: Literal["when-copied", "at-end"] = "when-copied"
    """When stored blocks can be found and dropped: when they are copied, or (up to 0.19) when their request ends."""
    gb_s: float | None = None
    """Bandwidth of a GPU's link in each direction, GB/s; none: 50/64 of what its data sheet says of PCIe."""
    start_us: float = 0.0
    """Time until the first byte of a copy."""

    def __post_init__(self) -> None:
        check_least(self, 1, "block_size_factor")
        check_least(self, 0, "gb_s", "start_us")
        if self.gb_s == 0:
            raise ValueError("gb_s is 0: nothing would ever come")
        if self.cpu == "":
            raise ValueError("cpu is missing: how much host memory, such as cpu=64GiB")
        self.cpu_bytes  # noqa: B018

    @property
    def cpu_bytes(self) -> int:
        """Bytes of host memory."""
        try:
            return size_in_bytes(str(self.cpu))
        except ValueError as error:
            raise ValueError(f"cpu: {error}") from None


NAMES = ("vllm",)


def params_of(settings: Mapping[str, Any]) -> VllmOffloadParams:
    """Return the settings of an offload, checked."""
    own = dict(settings)
    name = own.pop("name")
    if name not in NAMES:
        raise UserError(f"offload {shown(name)} is unknown; there are {', '.join(NAMES)} (such as vllm:cpu=64GiB)")
    params: VllmOffloadParams = build_params("offload", VllmOffloadParams, own)
    return params


@dataclass(frozen=True)
class OffloadSetup:
    """Host memory as each replica of a pool has it."""

    params: VllmOffloadParams
    num_blocks: int
    """Blocks of host memory of a replica."""
    block_tokens: int
    gpu_block_tokens: int
    gpu_block_bytes: int
    """Bytes of a GPU block on one GPU."""
    bytes_per_s: int
    """Of each GPU in each direction."""

    @classmethod
    def of(
        cls, settings: Mapping[str, Any], gpu: Gpu, block_size: int, block_bytes: int, gpus_per_replica: int
    ) -> OffloadSetup:
        """Resolve settings; UserError where they are wrong or no block fits."""
        params = params_of(settings)
        factor = params.block_size_factor
        rate = params.gb_s * 1e9 if params.gb_s is not None else gpu.pcie_bandwidth * PCIE_SHARE
        whole = block_bytes * gpus_per_replica * factor
        if params.cpu_bytes < whole:
            raise UserError(f"offload: cpu={params.cpu} holds no block: one takes {whole / 2**20:.3g} MiB")
        return cls(params, params.cpu_bytes // whole, factor * block_size, block_size, block_bytes, round(rate))

    @property
    def capacity_tokens(self) -> int:
        """Tokens that the host memory of a replica holds at most."""
        return self.num_blocks * self.block_tokens

    def attach(self, core: EngineCore) -> None:
        """Give a replica's core its host memory. UserError where a policy of it cannot wait for KV."""
        link = (self.bytes_per_s, round(self.params.start_us * 1000))
        check_policies(core.scheduler, core.kv)
        core.connect(
            Offload(
                POLICIES[self.params.eviction_policy](self.num_blocks),
                Direction(*link),
                Direction(*link),
                block_tokens=self.block_tokens,
                gpu_block_tokens=self.gpu_block_tokens,
                gpu_block_bytes=self.gpu_block_bytes,
                told_at_end=self.params.told == "at-end",
            )
        )
        core.step_plainly()

    def note(self, gpu: Gpu, gpu_tokens: int) -> str:
        """Return what a reader must know: how much is kept, and where the link's rate is from."""
        why = "as given" if self.params.gb_s is not None else f"50/64 of {gpu.name}'s PCIe, as measured on an H100"
        times = self.capacity_tokens / gpu_tokens
        return (
            f"offload: host memory for {self.capacity_tokens:,} tokens a replica ({times:.2g} x the GPU's), copied at "
            f"{self.bytes_per_s / 1e9:.3g} GB/s a GPU in each direction ({why})"
        )


def check_offload(scenario: Scenario, role: Role) -> None:
    """Raise UserError where a scenario has what is not modeled together with host memory."""
    reasons = {
        "pools of prompts and answers apart": role != "both",
        "data-parallel ranks (dp)": scenario.dp > 1,
        "cluster.failures": bool(scenario.cluster.failures),
        "streamed runs (stream)": scenario.stream,
    }
    for reason in [reason for reason, given in reasons.items() if given]:
        raise UserError(f"offload: not modeled with {reason}")


def check_policies(scheduler: Scheduler, kv: KVAllocator) -> None:
    """Raise UserError where policies cannot be combined with host memory."""
    if kv.grouped:
        raise UserError(
            f"offload: kv {kv.name} keeps tables of its own for sliding windows, whose offload is not modeled "
            "(engine.disable_hybrid_kv_cache_manager=true keeps all KV of such layers)"
        )
    if not {"remote_kv", "deferred"} <= scheduler.supports:
        raise UserError(f"offload: scheduler {scheduler.name} cannot wait for KV from host memory, vllm can")
    if kv.shares and "remote_kv" not in kv.supports:
        raise UserError(f"offload: kv {kv.name} cannot hold memory for KV from elsewhere, prefix-hash can")


def offload_figures(cores: Sequence[EngineCore], requests: Requests) -> dict[str, Any] | None:
    """Return the figures of the summary's `offload`, over all replicas: tokens, shares of the prompt tokens of admitted
    requests by where their KV was found, times in ms; None without."""
    found = [(core, core.connector) for core in cores if isinstance(core.connector, Offload)]
    if not found:
        return None
    counts = [offload.counts for _, offload in found]
    queried, gpu = requests.total("queried_tokens"), requests.total("hit_tokens")
    cpu = sum(sum(each.first_tokens.values()) for each in counts)
    loads = np.array([ns for each in counts for ns in each.load_ns], dtype=np.int64)
    seconds = requests.duration_ns / SECOND * len(found)
    return {
        "hit_rate": {"gpu": per(gpu, queried), "cpu": per(cpu, queried)},
        "loaded_tokens": cpu + sum(each.again_tokens for each in counts),
        "stored_tokens": sum(each.stored_tokens for each in counts),
        "capacity_tokens": sum(o.memory.num_blocks * o.block_tokens for _, o in found),
        "peak_share": max(o.counts.most_blocks / o.memory.num_blocks for _, o in found),
        "dropped_blocks": sum(each.dropped_blocks for each in counts),
        "refused_stores": sum(each.refused for each in counts),
        "deferred": sum(each.deferred for each in counts),
        "load_ms": describe(loads, MS),
        "load_busy_share": per(sum(o.loading.busy_ns for _, o in found) / SECOND, seconds),
        "store_busy_share": per(sum(o.storing.busy_ns for _, o in found) / SECOND, seconds),
        "stalled_s": sum(core.stalled_ns for core, _ in found) / SECOND,
    }
