"""Names, labels and buckets of an engine's metrics, and the rules by which it counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from servesim.live.metrics.counts import Bounds, Counts, Load
from servesim.live.metrics.histogram import Histogram
from servesim.records.step import Step

Value = float | Histogram
Labelled = Iterable[tuple[tuple[str, ...], Value]]


@dataclass(frozen=True)
class Engine:
    """A replica and its counts."""

    replica: Any
    counts: Counts
    scenario: Any
    """Resolved scenario of its pool."""
    several: bool
    """Whether there are others."""

    @property
    def load(self) -> Load:
        """The state last reported or, if nothing runs, the present one."""
        return self.counts.load if self.replica.core.in_flight else load_of(self.replica)

    @property
    def usage(self) -> float:
        """Share of its KV memory that is in use."""
        free, capacity = self.load.free_tokens, self.replica.core.kv.capacity_tokens
        return 1 - free / capacity if free >= 0 else 0.0


def load_of(replica: Any) -> Load:
    """Return the present state of a replica."""
    core = replica.core
    deferred = len(core.fetched) if core.fetched else 0
    return Load(replica.num_running, replica.num_waiting, deferred, core.kv.usage().free)


@dataclass(frozen=True)
class Family:
    """A metric, with the labels that it has in addition to those of all. Samples with the same labels are added up."""

    kind: Literal["gauge", "counter", "histogram"]
    name: str
    """Name; counters end in `_total`."""
    text: str
    read: Callable[[Engine], Labelled]
    labels: tuple[str, ...] = ()
    of_engine: bool = True
    """Whether it has the labels of an engine, or those of the server in front of several."""
    averaged: bool = False
    """Whether samples with the same labels are averaged instead."""


def one(read: Callable[[Engine], Value]) -> Callable[[Engine], Labelled]:
    """Return a reader of one sample without further labels."""
    return lambda engine: [((), read(engine))]


@dataclass(frozen=True)
class Dialect:
    """An engine's metrics."""

    families: Sequence[Family]
    labels: Callable[[str, Engine, bool], dict[str, str]]
    """Labels of a sample of a model's engine; `False`: of the server."""
    make: Callable[[Bounds], Counts]
    bounds: Callable[[int], Bounds]
    """Bounds of histograms, for a max_model_len."""
    stepped: Callable[[Counts, Any, Step, int, int], None]
    """Handler of a step of a replica that has ended, with the number of tokens that it delivered and the number of
    requests that ran when it was planned (-1 if not known), which decides whether the replica reports its state."""
    paths: tuple[str, ...] = ("/metrics",)
    one_server: bool = False
    """Whether metrics of engines are added up, because no label tells them apart."""
    lazy: bool = False
    """Whether counters and histograms appear only when they have counted something."""
    counts_aborted: bool = False
    """Whether requests that were aborted after they had been scheduled count as ended."""
    prefill_ttft: bool = True
    """Whether prefill engines are servers like others, with first tokens and queues, and decode engines get requests
    only from then on (vLLM behind a proxy); False: both get them at once (SGLang)."""
    tpot_of_one: bool = False
    """Whether a request with one output token counts as one with 0 s between its tokens."""
    queue_at_admission: bool = False
    """Whether the time in the queue is counted when a request is first scheduled, and not for prompts and outputs that
    are computed apart; otherwise, when it ends."""
    at_plan: bool = False
    """Whether the number of requests that run when a step with new requests is planned matters."""

    def counts(self, max_model_len: int) -> Counts:
        """Return empty counts of a replica."""
        return self.make(self.bounds(max_model_len))
