"""SGLang's scheduling-related server arguments (0.5.23: srt/server_args.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from servesim.contracts.params import check_least
from servesim.contracts.searched import Span
from servesim.errors import suggest

from ._sglang_order import POLICIES


@dataclass(frozen=True)
class SglangParams:
    """SGLang's server arguments under its names, with its defaults."""

    searched: ClassVar[Mapping[str, Any]] = {
        "max_running_requests": Span(16, 2048),
        "chunked_prefill_size": Span(1024, 32768),
        "schedule_policy": ("fcfs", "lpm"),
        "schedule_conservativeness": (1.0, 0.3),
        "enable_mixed_chunk": (False, True),
    }
    max_running_requests: int | None = None
    """Maximum number of running requests; None: vLLM's max_num_seqs for the GPU, but at least 2048 (SGLang: 2048 to
    4096, depending on memory)."""
    chunked_prefill_size: int | None = None
    """Maximum prompt tokens per chunk in a step; None: depends on GPU memory; -1: prompts are not split."""
    max_prefill_tokens: int = 16384
    """Maximum prompt tokens in one prefill batch."""
    schedule_policy: str = "fcfs"
    """Order of the waiting queue: fcfs, lpm (longest prefix match), dfs-weight, lof (longest output first), random,
    hrrn or shortest-prefill-first."""
    schedule_conservativeness: float = 1.0
    """Conservativeness of admission: with larger values, fewer requests are admitted and fewer retracted."""
    enable_mixed_chunk: bool = False
    """Whether decodes are mixed into prefill batches."""
    prefill_max_requests: int | None = None
    """Maximum number of requests in one prefill batch; None: no limit."""
    prefill_decode_interval: int = 0
    """Decode steps between two prefill batches while any request decodes."""
    scheduler_recv_interval: int = 1
    """Decode steps between checks for newly arrived requests; after a prefill batch, and if nothing is running, the
    scheduler checks immediately (0.5.9: srt/managers/scheduler_recv_skipper.py)."""
    retraction_policy: str = "length"
    """Requests to retract first: "length" (shortest output, then longest prompt) or "priority"."""
    enable_priority_scheduling: bool = False
    """Whether to serve requests by priority, then by schedule_policy, and to let a request preempt running ones."""
    schedule_low_priority_values_first: bool = False
    """Whether lower values mean higher priority."""
    priority_scheduling_preemption_threshold: int = 10
    """Priority difference above which a waiting request preempts running ones of lower priority."""
    ignore_eos: bool = False
    """Whether clients ask the server to ignore EOS and generate up to their caps; without a prefix cache, this makes
    memory use predictable."""

    def __post_init__(self) -> None:
        if self.schedule_policy not in POLICIES:
            raise ValueError(f"schedule_policy is {self.schedule_policy!r}{suggest(self.schedule_policy, POLICIES)}")
        if self.retraction_policy not in ("length", "priority"):
            raise ValueError(f'retraction_policy must be "length" or "priority", not "{self.retraction_policy}"')
        check_least(self, 1, "max_running_requests", "max_prefill_tokens", "prefill_max_requests")
        check_least(self, 1, "scheduler_recv_interval")
        check_least(self, 0, "schedule_conservativeness", "prefill_decode_interval")
        if self.chunked_prefill_size == 0:
            raise ValueError("chunked_prefill_size is 0 but must be at least 1, or -1 to disable chunking")

    @property
    def max_num_seqs(self) -> int | None:
        return self.max_running_requests

    @property
    def max_num_batched_tokens(self) -> int:
        chunk = self.chunked_prefill_size
        return self.max_prefill_tokens if chunk is None or chunk < 0 else min(chunk, self.max_prefill_tokens)
