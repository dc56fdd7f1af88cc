"""Settings of an offload: which connector, how much memory of which kind, how fast the ways to it are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from servesim.contracts import build_params
from servesim.contracts.params import check_least
from servesim.errors import UserError, shown

UNITS = {"": 1, "B": 1, **{f"{prefix}B": 10 ** (3 * (i + 1)) for i, prefix in enumerate("kMGT")}}
UNITS |= {f"{prefix}iB": 2 ** (10 * (i + 1)) for i, prefix in enumerate("KMGT")}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*([A-Za-z]*)\s*")


def size_in_bytes(text: str) -> int:
    """Return bytes of a size such as 64GiB, 1.5TB or 1e9. ValueError where it is none."""
    found = _SIZE.fullmatch(text)
    if found is None or found[2] not in UNITS:
        raise ValueError(
            f"{shown(text)} is not a size: write a number and one of {', '.join(list(UNITS)[1:])}, such as 64GiB"
        )
    return int(float(found[1]) * UNITS[found[2]])


@dataclass(frozen=True)
class HostParams:
    """Host memory of a replica and the way to it, whatever connector uses it."""

    needs: ClassVar[frozenset[str]] = frozenset({"remote_kv", "deferred"})
    """Features that a scheduler must support (servesim.contracts.scheduler)."""
    of_engine: ClassVar[str] = "vllm"
    needs_cpu: ClassVar[bool] = True
    """Whether `cpu` must be said."""
    cpu: str | float = ""
    """Host memory of a replica, for all its GPUs together (vLLM's --kv-offloading-size), such as 64GiB."""
    gb_s: float | None = None
    """Bandwidth of a GPU's link in each direction, GB/s; none: 50/64 of what its data sheet says of PCIe."""
    start_us: float = 0.0
    """Time until the first byte of a copy."""

    def __post_init__(self) -> None:
        check_least(self, 0, "gb_s", "start_us")
        if self.gb_s == 0:
            raise ValueError("gb_s is 0, must be above 0")
        if self.cpu == "" and self.needs_cpu:
            raise ValueError("cpu is missing: give the amount of host memory, such as cpu=64GiB")
        self.bytes_of("cpu")

    def bytes_of(self, tier: str) -> int:
        """Return the bytes of a kind of memory; 0 where there is none."""
        try:
            return size_in_bytes(str(getattr(self, tier))) if getattr(self, tier) != "" else 0
        except ValueError as error:
            raise ValueError(f"{tier}: {error}") from None


@dataclass(frozen=True)
class VllmOffloadParams(HostParams):
    """Settings of vLLM's offloading connector."""

    eviction_policy: Literal["lru", "arc"] = "lru"
    """Which blocks go first."""
    block_size_factor: int = 1
    """GPU blocks of a block in host memory."""
    told: Literal["when-copied", "at-end"] = "when-copied"
    """When stored blocks can be found and dropped: when they are copied, or (up to 0.19) when their request ends."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 1, "block_size_factor")


@dataclass(frozen=True)
class LMCacheParams(HostParams):
    """Settings of LMCache in vLLM's process."""

    needs: ClassVar[frozenset[str]] = frozenset({"external", "deferred"})
    disk: str | float = ""
    """Disk of a replica (max_local_disk_size of all its GPUs together); none: no disk."""
    disk_gb_s: float | None = None
    """Bandwidth of a replica's disk in each direction, GB/s."""
    disk_start_us: float = 0.0
    """Time until the first byte from or to the disk."""
    remote: str | float = ""
    """Remote store, shared by the replicas of a pool; none: no remote store."""
    remote_gb_s: float | None = None
    """Bandwidth between a replica and the remote store in each direction, GB/s."""
    remote_start_us: float = 0.0
    """Time until the first byte from or to the remote store."""
    chunk_size: int = 256
    """Tokens of a chunk; only whole ones are stored and found."""
    save_decode_cache: bool = False
    """Whether what is generated is stored, too."""
    min_retrieve_tokens: int = 0
    """Fewer tokens are computed rather than loaded."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 1, "chunk_size")
        check_least(self, 0, "disk_start_us", "remote_start_us", "min_retrieve_tokens")
        for tier in ("disk", "remote"):
            rate = getattr(self, f"{tier}_gb_s")
            if (self.bytes_of(tier) > 0) != (rate is not None):
                raise ValueError(f"{tier} and {tier}_gb_s must be given together (size and bandwidth)")
            if rate is not None and rate <= 0:
                raise ValueError(f"{tier}_gb_s is {rate}, must be above 0")


@dataclass(frozen=True)
class HiCacheParams(HostParams):
    """Settings of SGLang's HiCache (its --hicache-size is that of one GPU, and wins over the ratio, as cpu does)."""

    needs: ClassVar[frozenset[str]] = frozenset({"external"})
    of_engine: ClassVar[str] = "sglang"
    needs_cpu: ClassVar[bool] = False
    ratio: float = 2.0
    """Host memory in times of the GPU's (--hicache-ratio), where no cpu is given."""
    write_policy: Literal["write_through", "write_through_selective"] = "write_through"
    """When blocks are stored: when computed, or when they come for the second time."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.ratio <= 1000:
            raise ValueError(f"ratio is {self.ratio}, must be above 0 and at most 1000")


KINDS: Mapping[str, type[HostParams]] = {"vllm": VllmOffloadParams, "lmcache": LMCacheParams, "hicache": HiCacheParams}
"""Settings by the name of the connector."""


def params_of(settings: Mapping[str, Any]) -> HostParams:
    """Return the settings of an offload, checked."""
    own = dict(settings)
    name = own.pop("name")
    if name not in KINDS:
        raise UserError(f"offload {shown(name)} is unknown; choose from {', '.join(KINDS)} (such as vllm:cpu=64GiB)")
    params: HostParams = build_params("offload", KINDS[name], own)
    return params
