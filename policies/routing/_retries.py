"""Retries and circuit breakers of the SGLang router family (identical in sglang-router 0.3.2, smg 1.9.0 and vllm-router
0.1.17).

Source: lightseekorg/smg, model_gateway/src/core/retry.rs and circuit_breaker.rs.
"""

from __future__ import annotations

from dataclasses import dataclass

from servesim.contracts.params import check_least

RETRYABLE = frozenset((408, 429, 500, 502, 503, 504))
"""Statuses after which another attempt is made; so it is where a connection breaks before the answer begins. One that
breaks later is the client's to see."""


@dataclass(frozen=True)
class RetryParams:
    """Attempts and breakers, with the defaults of the command line."""

    max_retries: int = 5
    """Attempts in all."""
    initial_backoff_ms: float = 50
    """Wait before the second attempt."""
    max_backoff_ms: float = 30_000
    """Longest wait before an attempt."""
    backoff_multiplier: float = 1.5
    """How many times as long each wait is as the one before."""
    jitter_factor: float = 0.2
    """Share by which a wait is longer or shorter at random."""
    failure_threshold: int = 10
    """Failures in a row that open a replica's breaker: it is passed over."""
    success_threshold: int = 3
    """Successes in a row that close it again, once it is half open."""
    timeout_s: float = 60
    """Seconds after which an open breaker is half open: the replica may be chosen, and one failure opens it again."""

    def __post_init__(self) -> None:
        check_least(self, 1, "max_retries", "backoff_multiplier", "failure_threshold", "success_threshold")
        check_least(self, 0, "initial_backoff_ms", "max_backoff_ms", "jitter_factor", "timeout_s")

    def wait_ns(self, attempt: int, uniform: float) -> int | None:
        """Return the wait after attempt number `attempt` (from 0) failed, given a draw between 0 and 1; None: it was
        the last."""
        if attempt + 1 >= self.max_retries:
            return None
        wait = min(self.initial_backoff_ms * self.backoff_multiplier**attempt, self.max_backoff_ms)
        return round(wait * (1 + self.jitter_factor * (2 * uniform - 1)) * 1e6)


class Breaker:
    """The circuit breaker of one replica."""

    def __init__(self, params: RetryParams) -> None:
        self._params = params
        self._failures = self._successes = 0
        self._open_until_ns: int | None = None  # None: closed

    def closed(self) -> bool:
        """Whether nothing is known against the replica."""
        return self._open_until_ns is None

    def allows(self, now_ns: int) -> bool:
        """Whether the replica may be chosen: it is closed or half open."""
        return self._open_until_ns is None or now_ns >= self._open_until_ns

    def succeeded(self, now_ns: int) -> None:
        """Note an answer."""
        self._failures = 0
        if self._open_until_ns is not None and now_ns >= self._open_until_ns:
            self._successes += 1
            if self._successes >= self._params.success_threshold:
                self._open_until_ns = None

    def failed(self, now_ns: int) -> None:
        """Note a failure."""
        self._successes = 0
        self._failures += 1
        if self._open_until_ns is not None:
            if now_ns >= self._open_until_ns:
                self._open(now_ns)
        elif self._failures >= self._params.failure_threshold:
            self._open(now_ns)

    def _open(self, now_ns: int) -> None:
        self._failures = 0
        self._open_until_ns = now_ns + round(self._params.timeout_s * 1e9)
