"""Parameters of connectors: the size and kind of memory, and the bandwidth of the links to it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Literal

from servesim.contracts.params import check_least
from servesim.errors import shown

UNITS = {"": 1, "B": 1, **{f"{prefix}B": 10 ** (3 * (i + 1)) for i, prefix in enumerate("kMGT")}}
UNITS |= {f"{prefix}iB": 2 ** (10 * (i + 1)) for i, prefix in enumerate("KMGT")}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*([A-Za-z]*)\s*")


def size_in_bytes(text: str) -> int:
    """Return the bytes of a size such as 64GiB, 1.5TB or 1e9. Raise ValueError if it is not a size."""
    found = _SIZE.fullmatch(text)
    if found is None or found[2] not in UNITS:
        raise ValueError(
            f"{shown(text)} is not a size: write a number and one of {', '.join(list(UNITS)[1:])}, such as 64GiB"
        )
    size = float(found[1]) * UNITS[found[2]]
    if size > 1e18:
        raise ValueError(f"{shown(text)} is more than 1e18 bytes")
    return int(size)


def bytes_of(tier: str, said: str | float) -> int:
    """Return the bytes of a kind of memory, or 0 if there is none; raise ValueError if that is not a size."""
    try:
        return size_in_bytes(str(said)) if said != "" else 0
    except ValueError as error:
        raise ValueError(f"{tier}: {error}") from None


@dataclass(frozen=True)
class HostParams:
    """Host memory of a replica and the link to it."""

    needs_cpu: ClassVar[bool] = True
    """Whether `cpu` is required."""
    cpu: str | float = ""
    """Host memory of a replica, for all its GPUs together (vLLM's --kv-offloading-size), such as 64GiB."""
    gb_s: float | None = None
    """Bandwidth of a GPU's link in each direction, GB/s; default: 50/64 of the PCIe bandwidth on its data sheet."""
    start_us: float = 0.0
    """Microseconds until the first byte of a copy."""
    first: bool = False
    """Whether decode replicas look here before they pull KV from the prefill side: the order of MultiConnector's
    `connectors`. What they do not find here is then computed, not pulled."""

    def __post_init__(self) -> None:
        check_least(self, 0, "gb_s", "start_us")
        if self.gb_s == 0:
            raise ValueError("gb_s is 0 but must be above 0")
        if self.cpu == "" and self.needs_cpu:
            raise ValueError("cpu is missing: specify the amount of host memory, such as cpu=64GiB")
        self.bytes_of("cpu")

    def bytes_of(self, tier: str) -> int:
        """Return the bytes of a kind of memory, or 0 if there is none."""
        return bytes_of(tier, getattr(self, tier))


@dataclass(frozen=True)
class VllmOffloadParams(HostParams):
    """Settings of vLLM's offloading connector."""

    eviction_policy: Literal["lru", "arc"] = "lru"
    """Eviction policy."""
    block_size_factor: int = 1
    """Number of GPU blocks in a block of host memory."""
    told: Literal["when-copied", "at-end"] = "when-copied"
    """Time at which stored blocks can be found and dropped: when they are copied, or (up to 0.19) when their request
    ends."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 1, "block_size_factor")


@dataclass(frozen=True)
class LMCacheParams(HostParams):
    """Settings of LMCache in vLLM's process."""

    disk: str | float = ""
    """Disk of a replica (max_local_disk_size of all its GPUs together); default: no disk."""
    disk_gb_s: float | None = None
    """Bandwidth of a replica's disk in each direction, GB/s."""
    disk_start_us: float = 0.0
    """Microseconds until the first byte from or to the disk."""
    remote: str | float = ""
    """Remote store, shared by all replicas whose KV has the same format; default: no remote store."""
    remote_gb_s: float | None = None
    """Bandwidth between a replica and the remote store in each direction, GB/s."""
    remote_start_us: float = 0.0
    """Microseconds until the first byte from or to the remote store."""
    remote_server_gb_s: float | None = None
    """Bandwidth of the remote store in each direction, GB/s, which all replicas share; default: no limit."""
    replicas_per_node: int = 0
    """Number of replicas that share `cpu` and `disk`, those of a node, in a process of its own that outlives their
    engines (LMCache's multiprocess server); 0: each engine has its own."""
    chunk_size: int = 256
    """Tokens per chunk; only whole chunks are stored and found."""
    save_decode_cache: bool = False
    """Whether generated tokens are stored, too."""
    min_retrieve_tokens: int = 0
    """Minimum number of tokens to load; fewer are recomputed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 1, "chunk_size")
        check_least(self, 0, "disk_start_us", "remote_start_us", "min_retrieve_tokens", "replicas_per_node")
        if self.remote_server_gb_s is not None and not (self.remote and self.remote_server_gb_s > 0):
            raise ValueError("remote_server_gb_s must be above 0, and needs remote and remote_gb_s")
        for tier in ("disk", "remote"):
            rate = getattr(self, f"{tier}_gb_s")
            if (self.bytes_of(tier) > 0) != (rate is not None):
                raise ValueError(f"{tier} and {tier}_gb_s must be specified together (size and bandwidth)")
            if rate is not None and rate <= 0:
                raise ValueError(f"{tier}_gb_s is {rate} but must be above 0")


@dataclass(frozen=True)
class HiCacheParams(HostParams):
    """Settings of SGLang's HiCache (its --hicache-size is per GPU and overrides the ratio, as cpu does)."""

    needs_cpu: ClassVar[bool] = False
    ratio: float = 2.0
    """Host memory as a multiple of GPU KV memory (--hicache-ratio), used if `cpu` is not set."""
    write_policy: Literal["write_through", "write_through_selective"] = "write_through"
    """Time at which blocks are stored: when computed, or when they are computed or found for the second time."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.ratio <= 1000:
            raise ValueError(f"ratio is {self.ratio} but must be above 0 and at most 1000")


@dataclass(frozen=True)
class StoreParams:
    """Settings of a store without host memory between it and the GPUs."""

    store: str | float
    """Size of the store, such as 2TB. All replicas whose KV has the same format share it."""
    gb_s: float
    """Bandwidth between a replica and the store in each direction, GB/s, which its GPUs share."""
    server_gb_s: float | None = None
    """Bandwidth of the store in each direction, GB/s, which all replicas share; default: no limit."""
    start_us: float = 0.0
    """Microseconds until the first byte from or to the store."""
    block_size_factor: int = 1
    """Number of GPU blocks in a block of the store."""
    first: bool = False
    """Whether decode replicas look here before they pull KV from the prefill side."""

    def __post_init__(self) -> None:
        check_least(self, 0, "start_us")
        check_least(self, 1, "block_size_factor")
        for name in ("gb_s", "server_gb_s"):
            if (rate := getattr(self, name)) is not None and rate <= 0:
                raise ValueError(f"{name} is {rate} but must be above 0")
        bytes_of("store", self.store)
