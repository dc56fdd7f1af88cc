"""Hit rates of a prefix cache as vLLM logs them."""

from __future__ import annotations

from collections import deque


class RecentHitRate:
    """Share of looked-up tokens that were found, over the most recent requests (vLLM 0.33: vllm/v1/metrics/stats.py,
    CachingMetrics). Whole observations are dropped, oldest first, once they cover more than `window` requests; the last
    one always stays."""

    def __init__(self, window: int = 1000) -> None:
        self.window = window
        self._seen: deque[tuple[int, int, int]] = deque()
        self._requests = self._queries = self._hits = 0

    def observe(self, requests: int, queries: int, hits: int) -> None:
        """Record that `requests` requests looked up `queries` tokens in total, of which `hits` were found."""
        if not requests:
            return
        self._seen.append((requests, queries, hits))
        self._requests += requests
        self._queries += queries
        self._hits += hits
        while len(self._seen) > 1 and self._requests > self.window:
            requests, queries, hits = self._seen.popleft()
            self._requests -= requests
            self._queries -= queries
            self._hits -= hits

    @property
    def rate(self) -> float:
        """Share of looked-up tokens that were found; 0 if nothing was looked up."""
        return self._hits / self._queries if self._queries else 0.0
