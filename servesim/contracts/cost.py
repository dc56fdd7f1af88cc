"""A step from the cost model's point of view: the composition of one batch, and its price."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from mypy_extensions import mypyc_attr
from numpy.typing import NDArray


@dataclass(slots=True, init=False)
class Batch:
    """Composition of one engine step, as far as its duration depends on it.

    All tokens of the step go through the linear layers in one pass, so a mixed step is one batch, never the sum of a
    prefill step and a decode step. Decoding sequences are represented by moments of their contexts, which advance in
    O(1) from one step to the next.
    """

    linear_tokens: int
    """Tokens that pass through the linear layers: prefill tokens plus decode queries (padding not included)."""
    prefill: list[tuple[int, int]]
    """Prefill chunks as (new tokens, tokens already in the KV cache before them)."""
    decode_count: int
    """Number of decoding sequences."""
    decode_context_sum: int
    """Sum over decoding sequences of the context length attended: cached tokens plus the new ones."""
    decode_context_sumsq: int
    """Sum of the squared context lengths, for the skew of uneven batches."""
    decode_context_max: int
    """Longest context among the decoding sequences."""
    queries_per_sequence: int
    """Query tokens per decoding sequence (1 + drafts when verifying speculation)."""
    sampled: int
    """Sequences that sample in this step: rows of the LM head and of the sampler."""
    padded_tokens: int
    """Number of additional padding tokens computed (static batching, CUDA-graph sizes)."""
    bytes_moved: int
    """Bytes moved over PCIe in this step (swap)."""
    attention: str
    """"fused": one kernel for the whole batch; "per_request": one launch per request (Orca)."""
    bytes_copied: int
    """Bytes copied within the GPU's memory (compaction, copy-on-write)."""
    drafts: int
    """Draft tokens among the linear tokens, to be verified: each adds one row of the LM head."""
    draft_k: int
    """Draft tokens proposed for each sequence that samples, after this step."""
    sampled_context: int
    """Sum of the contexts of the sequences that sample, their new tokens included."""
    prompts: list[tuple[int, int, int, int]]
    """(new tokens, tokens computed before them, length of the prompt, known tokens) of each request that does not just
    decode its latest token: its prompt is being prefilled, or it recomputes lost tokens."""

    def __init__(  # written out so that compiled builds compile it, and not keyword-only, which takes twice as long
        self,
        linear_tokens: int,
        prefill: list[tuple[int, int]] | None = None,
        decode_count: int = 0,
        decode_context_sum: int = 0,
        decode_context_sumsq: int = 0,
        decode_context_max: int = 0,
        queries_per_sequence: int = 1,
        sampled: int = 0,
        padded_tokens: int = 0,
        bytes_moved: int = 0,
        attention: str = "fused",
        bytes_copied: int = 0,
        drafts: int = 0,
        draft_k: int = 0,
        sampled_context: int = 0,
        prompts: list[tuple[int, int, int, int]] | None = None,
    ) -> None:
        self.linear_tokens, self.decode_count, self.sampled = linear_tokens, decode_count, sampled
        self.prefill = [] if prefill is None else prefill
        self.decode_context_sum, self.decode_context_sumsq = decode_context_sum, decode_context_sumsq
        self.decode_context_max, self.queries_per_sequence = decode_context_max, queries_per_sequence
        self.padded_tokens, self.attention, self.sampled_context = padded_tokens, attention, sampled_context
        self.bytes_moved, self.bytes_copied = bytes_moved, bytes_copied
        self.drafts, self.draft_k = drafts, draft_k
        self.prompts = [] if prompts is None else prompts

    @staticmethod
    def decodes(
        count: int, context_sum: int, context_sumsq: int = 0, longest: int = 0, attention: str = "fused"
    ) -> Batch:
        """Return a step in which `count` sequences decode one token each, and nothing else happens. Statistics of the
        contexts other than their sum are needed only if uneven batches were measured."""
        one = Batch(count, None, count, context_sum, context_sumsq, longest, 1, count)  # keywords take twice as long
        one.attention, one.sampled_context = attention, context_sum
        return one

    def advance(self, k: int) -> Batch:
        """Return the batch k steps later, when every sequence of this pure decode batch has k more tokens."""
        n, s = self.decode_count, self.decode_context_sum
        return Batch(
            self.linear_tokens,
            decode_count=n,
            decode_context_sum=s + k * n,
            decode_context_sumsq=self.decode_context_sumsq + 2 * k * s + k * k * n,
            decode_context_max=self.decode_context_max + k,
            queries_per_sequence=self.queries_per_sequence,
            sampled=self.sampled,
            padded_tokens=self.padded_tokens,
            bytes_moved=self.bytes_moved,
            attention=self.attention,
            bytes_copied=self.bytes_copied,
            drafts=self.drafts,
            draft_k=self.draft_k,
            sampled_context=self.sampled_context + k * self.sampled,
        )


class Host(NamedTuple):
    """Host time of a step, in ns."""

    overlapped: int = 0
    """Work that overlaps with the GPU under asynchronous scheduling: planning, preparing inputs."""
    exposed: int = 0
    """Work that the GPU waits for in either mode: launches, the return of sampled tokens."""
    launching: int = 0
    """Launching the step's kernels one by one; hidden in either mode as far as the GPU's own time covers it."""


NO_HOST = Host()
Times = list[int] | NDArray[np.int64]
"""Nanoseconds of successive steps: a list or, if they are many, an array."""
Sources = tuple[int, int, int, int]
"""Nanoseconds by source: measured points, interpolation, extrapolation, roofline formula."""


class Price(NamedTuple):
    """Price of a step. The clock advances by `ns`; the other fields break it down."""

    ns: int
    """Duration of the step in nanoseconds."""
    gpu_ns: int
    """GPU time within the step, rounded once."""
    host: Host
    """Host time of the step, hidden behind the GPU or not."""
    sources: Sources = (0, 0, 0, 0)
    """Nanoseconds of `gpu_ns` from measured points, interpolation, extrapolation and roofline formula. They do not
    include the time added by a lowered clock."""

    @property
    def shares(self) -> tuple[float, float, float, float]:
        """Return the fractions of the sum of `sources`; if the sum is 0, all of it counts as formula."""
        a, b, c, d = self.sources
        whole = a + b + c + d
        return (a / whole, b / whole, c / whole, d / whole) if whole else (0.0, 0.0, 0.0, 1.0)


def by_source(gpu_ns: int, shares: tuple[float, float, float, float]) -> Sources:
    """Split `gpu_ns` into whole nanoseconds by source, from fractions; the parts add up to the total."""
    a, b, c = [int(gpu_ns * share + 0.5) for share in shares[:3]]
    return a, b, c, gpu_ns - a - b - c


def added(times: Times, first: int, stop: int) -> int:
    """Return the sum of the times from `first` up to but not including `stop`."""
    part = times[first:stop]
    return sum(part) if isinstance(part, list) else int(np.add.reduce(part))


@mypyc_attr(allow_interpreted_subclasses=True)
class RunSources:
    """GPU time of a run's steps by source, queried for the steps that are recorded."""

    def of(self, first: int, stop: int) -> Sources:
        """Return the sums over the steps from `first` (0: the run's first) up to but not including `stop`."""
        return (0, 0, 0, 0)


class Split:
    """Sources of steps whose GPU times differ only in the attention of one segment of measurements."""

    __slots__ = ("fixed", "less", "source")

    def __init__(self, fixed: Sources, source: int, less: int) -> None:
        self.fixed = fixed
        """Nanoseconds by source that all steps share."""
        self.source = source
        """Source of the rest of a step's GPU time."""
        self.less = less
        """Part of a step's GPU time that is not the rest."""

    def of(self, gpu_ns: int) -> Sources:
        """Return the nanoseconds by source of a step."""
        parts = [*self.fixed]
        parts[self.source] += gpu_ns - self.less
        a, b, c, d = parts
        return a, b, c, d


@mypyc_attr(allow_interpreted_subclasses=True)
class CostModel(ABC):
    """Durations of steps of one model on one device.

    Pure: the same batch always has the same price, regardless of earlier calls. GPU time is rounded once, as `int(x +
    0.5)`; host time is a whole number that does not change along a decode run, so that `price(b).ns == price_run(b,
    1)[0]` to the nanosecond for every batch b. Implementations of `price` and `gpu_run` follow the same order of
    floating-point operations. No method changes a batch, and each may be called at any time. A step takes at least 1
    ns: the engine raises PolicyError for less.
    """

    asynchronous: bool = False
    """Whether host work overlaps with the GPU. If true, the step takes the longer of overlapped host work and GPU time;
    if false, the two are added."""

    @abstractmethod
    def gpu_run(self, batch: Batch, k: int) -> NDArray[np.int64]:
        """Return the GPU ns of k successive steps: of this batch, then, if k > 1 (pure decode only), of
        `batch.advance(1)` to `batch.advance(k - 1)`."""

    num_stages: int = 1
    """Number of pipeline stages that a step passes through in order."""

    def stages(self, batch: Batch) -> tuple[int, ...]:
        """Return the GPU ns of a step on each of `num_stages` stages; their sum is `gpu_run` of that step. Called only
        if there are several stages."""
        return (int(self.gpu_run(batch, 1)[0]),)

    def host(self, batch: Batch) -> Host:
        """Return the host time of a step; depends only on counts of the batch, never on contexts. Default: none."""
        return NO_HOST

    def shares(self, batch: Batch) -> tuple[float, float, float, float]:
        """Return the fractions of the GPU time by source (see `Price.sources`), which add up to 1. Default: formula."""
        return (0.0, 0.0, 0.0, 1.0)

    def price(self, batch: Batch) -> Price:
        """Return the price of one step."""
        gpu, host = int(self.gpu_run(batch, 1)[0]), self.host(batch)
        return Price(self.step_ns(gpu, host), gpu, host, by_source(gpu, self.shares(batch)))

    def prices(self, batches: Sequence[Batch | None]) -> list[Price]:
        """Return the prices of one step of data-parallel ranks that wait for each other (None for a rank without work),
        each as if no other rank were slower. Default: each priced separately; a rank without work decodes one token."""
        return [self.price(batch if batch is not None else Batch.decodes(1, 1)) for batch in batches]

    def rank_stages(self, batches: Sequence[Batch | None]) -> list[tuple[int, ...]]:
        """Return, for each of several data-parallel ranks, the GPU ns of its part of a step on each of `num_stages`
        stages; their sum is the `gpu_ns` of `prices`. Called only if there are several stages. Default: each separately
        (see `prices`)."""
        return [self.stages(batch if batch is not None else Batch.decodes(1, 1)) for batch in batches]

    def step_ns(self, gpu_ns: int, host: Host) -> int:
        """Combine GPU and host time into the duration of a step."""
        overlapped, exposed, launching = host
        gpu_ns = gpu_ns if gpu_ns > launching else launching
        own: Any = self  # Any: mypyc would bind the class attribute
        if own.asynchronous:
            return (gpu_ns if gpu_ns > overlapped else overlapped) + exposed
        return gpu_ns + overlapped + exposed

    def price_run(self, batch: Batch, k: int) -> NDArray[np.int64]:
        """Return the `ns` of k successive steps of a pure decode batch."""
        return self.run_ns(self.gpu_run(batch, k), self.host(batch))

    def run_ns(self, gpu_ns: NDArray[np.int64], host: Host) -> NDArray[np.int64]:
        """Return `step_ns` for each of several steps."""
        own: Any = self
        if own.asynchronous:
            return np.maximum(gpu_ns, max(host.launching, host.overlapped)) + host.exposed
        if host.launching:
            gpu_ns = np.maximum(gpu_ns, host.launching)
        return gpu_ns + (host.overlapped + host.exposed)
