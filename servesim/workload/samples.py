"""Parallel sampling: requests that ask for n > 1 answers to their prompt.

Engines serve them in three forms (`Scheduler.samples`). "children": n simultaneous requests that share the prompt
through the prefix cache (vLLM V1: v1/engine/parallel_sampling.py). "prefix-first": a request that only computes the
prompt, followed by n requests when it is done (SGLang: managers/tokenizer_manager.py). "fork": one request, from which
the others are forked once its prompt is computed, so that they share its memory (vLLM V0: SequenceGroup;
PagedAttention, SOSP 2023).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from servesim.contracts.request import ParentRequest, Request, SampleForm

FURTHER = 1 << 40
"""Number of the first further sample; all requests have lower numbers."""
PROMPTS = 1 << 41
"""Offset from a request's number to that of the request that only computes its prompt."""


class FanOut:
    """Factory for the samples of requests, which also holds the samples still to be sent."""

    def __init__(self, form: SampleForm) -> None:
        self._form = form
        self._due: list[tuple[int, int, Request, int]] = []

    def next_ns(self) -> int | None:
        """Return the time at which the next sample is sent."""
        return self._due[0][0] if self._due else None

    def pop(self) -> tuple[Request, int]:
        """Pop the next sample and its output length."""
        _, _, request, output_len = heappop(self._due)
        return request, output_len

    def holds(self, request: Request) -> bool:
        """Return whether a sample is still to be sent."""
        return any(entry[2] is request for entry in self._due)

    def open(
        self, outputs: Sequence[int], make: Callable[[int], Request], now: int, *, further: int, prompt: int
    ) -> tuple[Request, int]:
        """Return the first request to send for a request with several samples, and its output length. `outputs`: the
        lengths of the samples. `make(i)` creates sample i from 0. `further`: number of sample 1, after which the others
        count up; `prompt`: number of the request that only computes the prompt, if there is one."""
        first = make(0)
        parent = ParentRequest(first.row, outputs=list(outputs))
        parent.members.append(self._member(parent, 1, first))
        for i in range(1, len(outputs)):
            member = self._member(parent, i + 1, make(i))
            member.row = further + i - 1
            member._stops = False  # its stop token ends it before the cap
            parent.members.append(member)
        if self._form == "prefix-first":
            alone = self._member(parent, -1, make(0))
            alone.row, alone.max_tokens, alone.predicted_output_len = prompt, 1, 1
            return alone, 1
        if self._form == "fork":
            parent.unforked = len(outputs) - 1
        else:
            self._send(parent, 1, now)
        return first, outputs[0]

    def leave(self, request: Request, now: int) -> bool:
        """Record that a client learns at `now` that a sample has left; return whether the whole request has now
        left."""
        parent = request.parent
        assert parent is not None
        gone = parent.leave(request)
        if request.sample < 0 and not gone and not parent.answering:
            parent.answering = True
            for member in parent.members:
                member.arrival_ns = now
            self._send(parent, 0, now)
        return gone

    def _member(self, parent: ParentRequest, sample: int, request: Request) -> Request:
        request.parent, request.sample = parent, sample
        request.name = f"{sample - 1}_{request.name}" if sample > 0 else f"prompt_{request.name}"
        return request

    def _send(self, parent: ParentRequest, first: int, now: int) -> None:
        for request, output_len in list(zip(parent.members, parent.outputs, strict=True))[first:]:
            heappush(self._due, (now, request.row, request, output_len))
