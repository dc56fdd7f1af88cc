"""Retries of the SGLang router family (identical in sglang-router 0.3.2, smg 1.9.0 and vllm-router 0.1.17).

Source: lightseekorg/smg, model_gateway/src/core/retry.rs.
"""

from __future__ import annotations

from dataclasses import dataclass

from servesim.contracts.params import check_least

RETRYABLE = frozenset((408, 429, 500, 502, 503, 504))
"""HTTP statuses that are retried, as are connections that break before the answer begins. If a connection breaks later,
the client sees the failure."""


@dataclass(frozen=True)
class RetryParams:
    """Settings of retries and circuit breakers, with the command-line defaults."""

    max_retries: int = 5
    """Total number of attempts."""
    initial_backoff_ms: float = 50
    """Wait before the second attempt."""
    max_backoff_ms: float = 30_000
    """Longest wait before an attempt."""
    backoff_multiplier: float = 1.5
    """Ratio of each wait to the previous one."""
    jitter_factor: float = 0.2
    """Share by which a wait is randomly lengthened or shortened."""
    failure_threshold: int = 10
    """Consecutive failures that open a replica's breaker, so that the replica is skipped."""
    success_threshold: int = 3
    """Consecutive successes that close a half-open breaker."""
    timeout_s: float = 60
    """Seconds until an open breaker is half open: the replica may be chosen, and one failure opens the breaker
    again."""

    def __post_init__(self) -> None:
        check_least(self, 1, "max_retries", "backoff_multiplier", "failure_threshold", "success_threshold")
        check_least(self, 0, "initial_backoff_ms", "max_backoff_ms", "jitter_factor", "timeout_s")

    def wait_ns(self, attempt: int, uniform: float) -> int | None:
        """Return the wait after the failure of attempt number `attempt` (from 0), given a draw between 0 and 1, or None
        if it was the last attempt."""
        if attempt + 1 >= self.max_retries:
            return None
        wait = min(self.initial_backoff_ms * self.backoff_multiplier**attempt, self.max_backoff_ms)
        return round(wait * (1 + self.jitter_factor * (2 * uniform - 1)) * 1e6)
