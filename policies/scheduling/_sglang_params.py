"""SGLang's server arguments that concern scheduling (0.5.23: srt/server_args.py)."""

from __future__ import annotations

from dataclasses import dataclass

from servesim.contracts.params import check_least
from servesim.errors import suggest

from ._sglang_order import POLICIES


@dataclass(frozen=True)
class SglangParams:
    """SGLang's server arguments under its names, with its defaults."""

    max_running_requests: int | None = None
    """None: vLLM's max_num_seqs for the GPU, but at least 2048 (SGLang: 2048 to 4096, by memory)."""
    chunked_prefill_size: int | None = None
    """Longest piece of prompts in a step; None: by GPU memory; -1: prompts are not cut."""
    max_prefill_tokens: int = 16384
    """Tokens of prompts in one prefill batch."""
    schedule_policy: str = "fcfs"
    """fcfs, lpm (longest prefix match), dfs-weight, lof (longest output first), random, hrrn or
    shortest-prefill-first."""
    schedule_conservativeness: float = 1.0
    """Larger: fewer enter, fewer are retracted."""
    enable_mixed_chunk: bool = False
    """Decodes ride along with prefill batches."""
    prefill_max_requests: int | None = None
    """Requests of one prefill batch; None: no limit."""
    prefill_decode_interval: int = 0
    """Decode steps between two prefill batches, while anything decodes."""
    scheduler_recv_interval: int = 1
    """Decode steps between two looks at the requests that came meanwhile; after a prefill batch, and where nothing
    runs, the scheduler looks at once (0.5.9: srt/managers/scheduler_recv_skipper.py)."""
    retraction_policy: str = "length"
    """Whom to retract first: "length" (shortest output, then longest prompt) or "priority"."""
    enable_priority_scheduling: bool = False
    """Serve by priority, then by schedule_policy; a request may take the place of running ones."""
    schedule_low_priority_values_first: bool = False
    """A lower value is a higher priority."""
    priority_scheduling_preemption_threshold: int = 10
    """A waiter takes the place of running ones whose priority is lower by more than this."""
    ignore_eos: bool = False
    """Clients ask to run to their caps; without a prefix cache that makes memory predictable."""

    def __post_init__(self) -> None:
        if self.schedule_policy not in POLICIES:
            raise ValueError(f"schedule_policy is {self.schedule_policy!r}{suggest(self.schedule_policy, POLICIES)}")
        if self.retraction_policy not in ("length", "priority"):
            raise ValueError(f'retraction_policy is "length" or "priority", not "{self.retraction_policy}"')
        check_least(self, 1, "max_running_requests", "max_prefill_tokens", "prefill_max_requests")
        check_least(self, 1, "scheduler_recv_interval")
        check_least(self, 0, "schedule_conservativeness", "prefill_decode_interval")
        if self.chunked_prefill_size == 0:
            raise ValueError("chunked_prefill_size is 0, must be at least 1, or -1 to leave prompts whole")

    @property
    def max_num_seqs(self) -> int | None:
        return self.max_running_requests

    @property
    def max_num_batched_tokens(self) -> int:
        chunk = self.chunked_prefill_size
        return self.max_prefill_tokens if chunk is None or chunk < 0 else min(chunk, self.max_prefill_tokens)
