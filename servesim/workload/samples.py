"""Parallel sampling: requests that ask for n > 1 answers to their prompt.

Engines serve them in three forms (`Scheduler.samples`). "children": n simultaneous requests that share the prompt
through the prefix cache (vLLM V1: v1/engine/parallel_sampling.py). "prefix-first": a request that only computes the
prompt, followed by n requests when it is done (SGLang: managers/tokenizer_manager.py). "fork": one request, from which
the others are forked once its prompt is computed, so that they share its memory (vLLM V0: SequenceGroup;
PagedAttention, SOSP 2023).
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from servesim.contracts.request import ParentRequest, Request, SampleForm
from servesim.workload.trace import Samples


class FanOut:
    """Factory for the samples of a trace's requests, which also holds the samples still to be sent.

    With `rows` rows, each tried up to `attempts` times, the first rows * attempts numbers belong to the requests
    themselves. Further samples are numbered after those, and prompt-only requests after all others.
    """

    def __init__(self, samples: Samples, form: SampleForm, rows: int, attempts: int) -> None:
        self._samples = samples
        self._form = form
        self._rows = rows
        self._further = rows * attempts
        self._prompts = self._further + attempts * len(samples.output_len)
        self._due: list[tuple[int, int, Request, int]] = []

    def next_ns(self) -> int | None:
        """Return the time at which the next sample is sent."""
        return self._due[0][0] if self._due else None

    def pop(self) -> tuple[Request, int]:
        """Pop the next sample and its output length."""
        _, _, request, output_len = heappop(self._due)
        return request, output_len

    def open(
        self, number: int, output_len: int, make: Callable[[int | None], Request], now: int
    ) -> tuple[Request, int]:
        """Return the first request to send for request `number`, and its output length. `make` creates the request or,
        given i, the sample whose answer is text i; i is the row for the first sample, and a position after all rows for
        further samples."""
        attempt, row = divmod(number, self._rows)
        lengths = self._samples.lengths(row)
        if not lengths:
            return make(None), output_len
        start = int(self._samples.offsets[row])
        parent = ParentRequest(number, outputs=[output_len, *lengths])
        for sample in range(1, len(lengths) + 2):
            text = row if sample == 1 else self._rows + start + sample - 2
            member = self._member(parent, sample, make(text))
            if sample > 1:
                member.row = self._further + attempt * len(self._samples.output_len) + start + sample - 2
                member._stops = False  # its stop token ends it before the cap
            parent.members.append(member)
        if self._form == "prefix-first":
            prompt = self._member(parent, -1, make(row))
            prompt.row, prompt.max_tokens, prompt.predicted_output_len = self._prompts + number, 1, 1
            return prompt, 1
        if self._form == "fork":
            parent.unforked = len(lengths)
        else:
            self._send(parent, 1, now)
        return parent.members[0], output_len

    def leave(self, request: Request, now: int) -> bool:
        """Record that a client learns at `now` that a sample has left; return whether the whole request has now
        left."""
        parent = request.parent
        assert parent is not None
        gone = parent.leave(request)
        if request.sample < 0 and not gone:
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
