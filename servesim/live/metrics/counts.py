"""Counts of what happened at one replica, from which each engine's metrics are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from servesim.contracts.request import Request
from servesim.live.metrics.histogram import NS, Histogram
from servesim.live.watcher import Gap
from servesim.metrics.steps import ORIGINS
from servesim.records.step import Step

Bounds = Mapping[str, Sequence[float]]
"""Bounds of histograms by measure; a measure without bounds is only added up."""
_EXTRAPOLATED = ORIGINS.index("extrapolated")
TIMES = ("ttft", "itl", "tpot", "e2e", "queue", "prefill", "decode", "inference")
"""Measures whose bounds are in seconds."""


class Load(NamedTuple):
    """State of a replica, as its engine reports it."""

    running: int = 0
    waiting: int = 0
    """Number of requests that wait, deferred ones included."""
    deferred: int = 0
    """Number of requests that wait for remote KV, or for a slot once it has arrived."""
    free_tokens: int = -1
    """Memory that is available, cached prefixes included, in tokens; -1 before the first report."""


class End(NamedTuple):
    """Facts of a request that has ended, beyond those that it keeps."""

    e2e_ns: int
    """Time from its arrival to its last token."""
    queue_ns: int | None
    """Time until it was first scheduled, or None if the engine does not measure it."""
    cached: int
    """Prompt tokens that were not computed."""
    external: int
    """Those of them that were loaded from elsewhere."""
    has_tpot: bool
    """Whether the mean time between its tokens counts."""


class Served:
    """Histograms of what requests took and got."""

    def __init__(self, bounds: Bounds) -> None:
        self.of = {name: histogram(name, bounds) for name in _MEASURES}

    def first(self, ns: int) -> None:
        """Count a first token, delivered after `ns`."""
        self.of["ttft"].add(ns)

    def ended(self, request: Request, end: End) -> None:
        """Count a request that has ended."""
        of, output = self.of, request.num_output_tokens
        of["e2e"].add(end.e2e_ns)
        of["prompt"].add(request.prompt_len)
        of["cached"].add(end.cached)
        of["external"].add(end.external)
        of["uncached"].add(request.prompt_len - end.cached)
        of["generation"].add(output)
        of["preemptions"].add(request.num_preemptions)
        of["max_tokens"].add(request.max_tokens)
        self._whole(request)
        if end.queue_ns is not None:
            of["queue"].add(end.queue_ns)
        first, last = request.first_token_ns, request.last_token_ns
        if first < 0:
            return
        of["prefill"].add(first - request.scheduled_ns)
        of["decode"].add(last - first)
        of["inference"].add(last - request.scheduled_ns)
        if end.has_tpot:
            of["tpot"].add((last - first) / (output - 1) if output > 1 else 0)

    def _whole(self, request: Request) -> None:
        """Count a request as its client sent it, once, when the last of its samples has ended."""
        parent = request.parent
        members = [request] if parent is None else parent.members
        if parent is None or parent.num_gone + 1 >= len(members):
            self.of["n"].add(len(members))
            self.of["most"].add(max(member.num_output_tokens for member in members))


_MEASURES = (
    *("ttft", "tpot", "e2e", "queue", "prefill", "decode", "inference"),
    *("prompt", "generation", "cached", "external", "uncached", "preemptions", "max_tokens", "n", "most"),
)


def histogram(name: str, bounds: Bounds) -> Histogram:
    """Return an empty histogram of a measure."""
    return Histogram(bounds.get(name, ()), NS if name in TIMES else 1)


@dataclass
class Prompts:
    """Prompt tokens of requests that got their first tokens, by where their KV came from."""

    total: int = 0
    hits: int = 0
    """Tokens found in the replica's own prefix cache."""
    external: int = 0
    """Tokens loaded from elsewhere."""

    @property
    def computed(self) -> int:
        return self.total - self.hits - self.external


@dataclass
class Lookups:
    """Tokens looked up when requests were admitted for the first time, and tokens found."""

    queries: int = 0
    hits: int = 0


@dataclass
class Drafts:
    """Drafts verified."""

    count: int = 0
    tokens: int = 0
    accepted: int = 0
    accepted_at: list[int] = field(default_factory=list)
    """Accepted drafts by position."""

    def add(self, verified: Sequence[tuple[int, int]]) -> None:
        """Count (depth, accepted) of several requests."""
        at = self.accepted_at
        for depth, accepted in verified:
            self.count += 1
            self.tokens += depth
            self.accepted += accepted
            if depth > len(at):
                at += [0] * (depth - len(at))
            for position in range(accepted):
                at[position] += 1


class Counts:
    """Counts of one replica. They go on if the engine starts again."""

    def __init__(self, bounds: Bounds) -> None:
        self.served = {True: Served(bounds), False: Served(bounds)}
        """Requests by whether the answer was streamed."""
        self.itl, self.iteration = histogram("itl", bounds), histogram("iteration", bounds)
        self.prompts, self.local, self.external, self.drafts = Prompts(), Lookups(), Lookups(), Drafts()
        self.finished: dict[str, int] = {}
        """Number of finished requests by reason."""
        self.generated = self.preemptions = self.aborted = 0
        self.refused = 0
        """Number of requests refused because too many waited."""
        self.retracted_prompt = self.retracted_output = 0
        """Prompt and output tokens of preempted requests."""
        self.gpu_ns = self.extrapolated_ns = 0
        self.load = Load()
        self._firsts = self._computed = 0  # first tokens since the last step ended, and the prompts computed for them

    def admitted(self, request: Request, external: int, shares: bool, connected: bool) -> None:
        """Count the lookups of a request that is admitted for the first time. `external`: tokens found elsewhere;
        `shares`, `connected`: whether there is a prefix cache, and another source of KV."""
        hits = request.hit_tokens
        if shares:
            self.local.queries += request.prompt_len
            self.local.hits += hits
        if connected:
            self.external.queries += request.prompt_len - hits
            self.external.hits += external

    def first(self, request: Request, external: int) -> None:
        """Count the prompt of a request whose first token is delivered now."""
        prompts = self.prompts
        prompts.total += request.prompt_len
        prompts.hits += request.hit_tokens
        prompts.external += external
        self._firsts += 1
        self._computed += request.prompt_len - request.hit_tokens - external

    def stepped(self, step: Step, gaps: Sequence[Gap]) -> int:
        """Count a step that has ended; return the number of tokens that it delivered."""
        tokens = self._firsts
        for ns, each, requests in gaps:
            tokens += each * requests
            if ns:
                self.itl.add(ns, requests)  # one for each delivery, however many tokens it has
        self.generated += tokens
        self.preemptions += step.preempted
        if tokens:
            self.iteration.add(self._computed + tokens)
        self._firsts = self._computed = 0
        if step.verified:
            self.drafts.add(step.verified)
        self.gpu_ns += step.gpu_ns
        self.extrapolated_ns += step.sources[_EXTRAPOLATED]
        return tokens
