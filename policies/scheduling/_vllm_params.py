"""vLLM's arguments that concern scheduling."""

from __future__ import annotations

from dataclasses import dataclass

from servesim.contracts.params import SchedulerParams, check_least, check_share


@dataclass(frozen=True)
class VllmParams(SchedulerParams):
    """vLLM's knobs under vLLM's names, with its defaults."""

    policy: str = "fcfs"
    """"fcfs", or "priority": lower value first, then arrival, then request id."""
    enable_chunked_prefill: bool = True
    """Cut prompts to what is left of the budget; else a prompt waits until it fits whole."""
    long_prefill_token_threshold: int = 0
    """Longest chunk of one prompt while others are there; 0: no limit."""
    long_prefill_token_threshold_adaptive: bool = False
    """Raise that limit to an equal share of the budget."""
    scheduler_reserve_full_isl: bool = True
    """Admit only what fits as a whole, although it is computed in chunks."""
    watermark: float = 0.0
    """Fraction of the blocks left free by admissions while something runs."""
    prefill_schedule_interval: int = 1
    """Prefill work waits until this many steps after the last step that had some, while others decode."""
    max_num_scheduled_tokens: int | None = None
    """Tokens scheduled per step; None: max_num_batched_tokens."""
    max_num_active_seqs: int | None = None
    """Requests running at once; None: max_num_seqs."""
    num_speculative_tokens: int = 0
    """Drafts of a request, to which batches of decodes alone are filled up; 0: none."""
    num_lookahead_tokens: int = 0
    """KV slots kept ahead for drafts (EAGLE, MTP, draft model: num_speculative_tokens)."""
    draft_slots_per_request: int = 0
    """Input slots a parallel drafter takes per scheduled request."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.policy not in ("fcfs", "priority"):
            raise ValueError(f'policy is "fcfs" or "priority", not "{self.policy}"')
        check_share("watermark", self.watermark)
        check_least(self, 1, "prefill_schedule_interval", "max_num_scheduled_tokens", "max_num_active_seqs")
        drafts = ("num_speculative_tokens", "num_lookahead_tokens", "draft_slots_per_request")
        check_least(self, 0, "long_prefill_token_threshold", *drafts)
