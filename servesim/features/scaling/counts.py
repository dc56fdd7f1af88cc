"""Requests of a pool between two queries to an autoscaler."""

from __future__ import annotations

from servesim.contracts.request import Request

SECOND = 1e9


class Counts:
    """Requests that arrived and finished, and their tokens."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin a new interval."""
        self.arrived = self.prompt_tokens = self.finished = self.output_tokens = 0

    def arrive(self, request: Request) -> None:
        """Count a request that arrives."""
        self.arrived += 1
        self.prompt_tokens += request.prompt_len

    def finish(self, request: Request) -> None:
        """Count a request that has finished."""
        self.finished += 1
        self.output_tokens += request.num_tokens - request.prompt_len

    def latencies(self) -> tuple[float | None, float | None, float | None]:
        """Return the mean TTFT, TPOT and end-to-end time in seconds; None for those that are not measured."""
        return None, None, None


class Latencies(Counts):
    """Counts with the latencies of the requests that finished."""

    def clear(self) -> None:
        super().clear()
        self._ttft_ns = self._e2e_ns = self._num_tpot = 0
        self._tpot_ns = 0.0

    def finish(self, request: Request) -> None:
        super().finish(request)
        self._ttft_ns += request.first_token_ns - request.arrival_ns
        self._e2e_ns += request.finished_ns - request.arrival_ns
        tokens = request.num_tokens - request.prompt_len
        if tokens > 1:
            self._num_tpot += 1
            self._tpot_ns += (request.finished_ns - request.first_token_ns) / (tokens - 1)

    def latencies(self) -> tuple[float | None, float | None, float | None]:
        if not self.finished:
            return None, None, None
        tpot_s = self._tpot_ns / self._num_tpot / SECOND if self._num_tpot else None
        return self._ttft_ns / self.finished / SECOND, tpot_s, self._e2e_ns / self.finished / SECOND
