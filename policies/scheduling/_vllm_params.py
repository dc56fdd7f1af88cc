"""vLLM's scheduling-related arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from servesim.contracts.params import SchedulerParams, check_least, check_share


@dataclass(frozen=True)
class VllmParams(SchedulerParams):
    """vLLM's settings under vLLM's names, with its defaults."""

    searched: ClassVar[Mapping[str, Any]] = {"long_prefill_token_threshold": (0, 512, 2048)}
    performance_mode: str = "balanced"
    """vLLM's --performance-mode: "throughput" doubles max_num_batched_tokens and max_num_seqs where they are not given
    (vllm/engine/arg_utils.py, _set_default_max_num_seqs_and_batched_tokens_args)."""
    policy: str = "fcfs"
    """Queue order: "fcfs" or "priority" (lowest value first, with ties by arrival time, then by request id)."""
    enable_chunked_prefill: bool = True
    """Whether to split prompts to fit the remaining budget; otherwise a prompt waits until it fits as a whole."""
    long_prefill_token_threshold: int = 0
    """Maximum prefill chunk of one prompt, in tokens, while other requests are present; 0: no limit."""
    long_prefill_token_threshold_adaptive: bool = False
    """Whether to raise long_prefill_token_threshold to an equal share of the budget, if that is larger."""
    scheduler_reserve_full_isl: bool = True
    """Whether to admit only requests that fit as a whole, even though they are computed in chunks."""
    watermark: float = 0.0
    """Fraction of the blocks that admissions leave free while any request is running."""
    prefill_schedule_interval: int = 1
    """Minimum number of steps from one step with prefill work to the next while other requests decode."""
    max_num_scheduled_tokens: int | None = None
    """Maximum number of tokens scheduled per step; None: max_num_batched_tokens."""
    max_num_active_seqs: int | None = None
    """Maximum number of running requests; None: max_num_seqs."""
    num_speculative_tokens: int = 0
    """Number of drafts per request to which decode-only batches are padded; 0: none."""
    num_lookahead_tokens: int = 0
    """KV slots reserved ahead for drafts (EAGLE, MTP, draft model: num_speculative_tokens)."""
    draft_slots_per_request: int = 0
    """Input slots that a parallel drafter takes per scheduled request."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.performance_mode not in ("balanced", "throughput"):
            raise ValueError(f'performance_mode must be "balanced" or "throughput", not "{self.performance_mode}"')
        if self.policy not in ("fcfs", "priority"):
            raise ValueError(f'policy must be "fcfs" or "priority", not "{self.policy}"')
        check_share("watermark", self.watermark)
        check_least(self, 1, "prefill_schedule_interval", "max_num_scheduled_tokens", "max_num_active_seqs")
        drafts = ("num_speculative_tokens", "num_lookahead_tokens", "draft_slots_per_request")
        check_least(self, 0, "long_prefill_token_threshold", *drafts)

    @property
    def default_limits_times(self) -> int:
        """Factor on the limits that are the GPU's defaults."""
        return 2 if self.performance_mode == "throughput" else 1
