"""Shaping transforms a trace step by step. Each step is written `step:key=value,...` and recorded in the result's
notes.

A play (a conversation, or an agent with its sub-agents; otherwise a single request) stays whole in every step: its
first request decides how it is moved, kept, dropped or labeled. Draws are keyed by the seed and the play's number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from servesim import draws
from servesim.errors import UserError, shown, suggest
from servesim.parsing import pairs
from servesim.plugins.registry import build_params
from servesim.workload.trace import Ints, Samples, Trace

from .join import join
from .spec import Call
from .synth.arrivals import draw
from .synth.lengths import MAX_TOKENS
from .what_if import Burst, Growth, Share, begins_of

SECOND = 1_000_000_000
LONGEST = 1 << 62
"""Maximum time in nanoseconds, chosen so that sums of times fit into 64 bits."""


class Step(Protocol):
    """One shaping step: a frozen dataclass whose fields are its parameters."""

    def __call__(self, trace: Trace, seed: int) -> Trace: ...


def shape(trace: Trace, steps: Sequence[str], seed: int = 0) -> Trace:
    """Return the trace after applying all steps in order; raise UserError if a step is unknown or leaves no
    requests."""
    for number, text in enumerate(steps):
        step = parse(text)
        try:
            shaped = step(trace, seed + number)
        except UserError as error:
            raise UserError(f"shape {text}: {error}") from error
        change = "" if len(shaped) == len(trace) else f" ({len(shaped):,} requests of {len(trace):,})"
        trace = replace(shaped, notes=(*shaped.notes, f"shape {text}{change}"))
    return trace


def parse(text: str) -> Step:
    """Parse one step from text. `trace=` takes the rest of the text, commas included."""
    name, _, rest = text.partition(":")
    if name not in STEPS:
        raise UserError(f"shape: unknown step {name!r}{suggest(name, STEPS)}")
    before, comma, file = ("," + rest).partition(",trace=")
    values = pairs(f"shape {name}", before.removeprefix(",")) | ({"trace": file} if comma else {})
    values = {WRITTEN.get(key, key): value for key, value in values.items()}
    step: Step = build_params(f"shape {name}", STEPS[name], values)
    return step


@dataclass(frozen=True)
class Window:
    """Plays that begin between `start` and `end` seconds. Times become relative to `start`."""

    start: float = 0.0
    end: float = float("inf")

    def __call__(self, trace: Trace, seed: int) -> Trace:
        if not 0 <= self.start < self.end:
            raise UserError(
                f"start is {self.start:g} and end is {self.end:g}, but start must be at least 0 and end must be "
                "after start"
            )
        begins, play = begins_of(trace)
        inside = (begins >= self.start * SECOND) & (begins < self.end * SECOND)
        kept = _keep(trace, inside[play])
        return kept.at(np.maximum(kept.arrival_ns - round(self.start * SECOND), 0))


@dataclass(frozen=True)
class First:
    """The first N plays. A play is a conversation, or an agent with its sub-agents; otherwise, it is a single
    request."""

    plays: int

    def __call__(self, trace: Trace, seed: int) -> Trace:
        return _keep(trace, trace.plays() < self.plays)


@dataclass(frozen=True)
class Where:
    """Plays whose first request has these labels, as in `where:model=llama-3.1-8b`."""

    model: str = ""
    tenant: str = ""
    slo_class: str = ""

    def __call__(self, trace: Trace, seed: int) -> Trace:
        wanted = {"model": self.model, "tenant": self.tenant, "class": self.slo_class}
        wanted = {kind: text for kind, text in wanted.items() if text}
        if not wanted:
            raise UserError("specify the label to keep: model=, tenant= or slo_class=")
        rows = np.ones(len(trace), dtype=np.bool_)
        for kind, text in wanted.items():
            found = trace.labels.get(kind, ())
            if text not in found:
                raise UserError(f"no request has {kind} {shown(text)}{suggest(text, {*found} - {''})}")
            rows &= np.array(found) == text
        play = trace.plays()
        begins = np.unique(play, return_index=True)[1]  # rows of first requests
        return _keep(trace, rows[begins][play])


@dataclass(frozen=True)
class Thin:
    """Random selection that keeps each play with probability `keep`."""

    keep: float

    def __call__(self, trace: Trace, seed: int) -> Trace:
        if not 0 < self.keep <= 1:
            raise UserError(f"keep is {self.keep:g} but must be above 0 and at most 1")
        play = trace.plays()
        return _keep(trace, (draws.uniform(seed, "thin", np.arange(play.max() + 1)) < self.keep)[play])


@dataclass(frozen=True)
class Stretch:
    """Arrival times multiplied by `factor`. A factor of 2 halves the rate."""

    factor: float

    def __call__(self, trace: Trace, seed: int) -> Trace:
        if not 0 < self.factor < 1e6:
            raise UserError(f"factor is {self.factor:g} but must be above 0")
        return trace.at(_ns(trace.arrival_ns, self.factor))


@dataclass(frozen=True)
class Ramp:
    """Rate multiplied by a factor that changes linearly from `start` at the beginning of the trace to `end` at its
    end."""

    start: float
    end: float

    def __call__(self, trace: Trace, seed: int) -> Trace:
        if min(self.start, self.end) <= 0:
            raise UserError("'start' and 'end' must be above 0")
        span = max(int(trace.arrival_ns[-1] - trace.arrival_ns[0]), 1)
        share = (trace.arrival_ns - trace.arrival_ns[0]) / span
        rise = self.end - self.start  # new time is the integral of 1 / (start + rise x)
        with np.errstate(over="ignore", invalid="ignore"):
            passed = share / self.start if rise == 0 else np.log1p(share * rise / self.start) / rise
        return trace.at(_ns(passed * span))


@dataclass(frozen=True)
class Arrive:
    """New start times of plays, drawn from an arrival process: poisson, constant, gamma(cv=2), or mmpp(...), written as
    in synth:."""

    rate: float
    process: str = "poisson"

    def __call__(self, trace: Trace, seed: int) -> Trace:
        if not self.rate > 0:
            raise UserError(f"rate is {self.rate:g} but must be above 0")
        begins, play = begins_of(trace)
        seconds = draw(Call.parse("arrivals", self.process), np.arange(len(begins)), self.rate, seed)
        return _moved(trace, begins, play, _ns(seconds, SECOND))


@dataclass(frozen=True)
class Shuffle:
    """Random permutation of the plays' start times."""

    def __call__(self, trace: Trace, seed: int) -> Trace:
        begins, play = begins_of(trace)
        return _moved(trace, begins, play, begins[np.argsort(draws.uniform(seed, "shuffle", np.arange(len(begins))))])


@dataclass(frozen=True)
class Think:
    """Pauses between calls, multiplied by `scale` and then limited to `cap` seconds."""

    cap: float = float("inf")
    scale: float = 1.0

    def __call__(self, trace: Trace, seed: int) -> Trace:
        if trace.after is None:
            raise UserError("no request waits for another, so there are no pauses")
        if self.cap < 0 or not 0 <= self.scale < 1e6:
            raise UserError("'cap' and 'scale' must be at least 0, and 'scale' must be below 1,000,000")
        pauses = np.minimum(np.rint(trace.after.delays_ns * self.scale), self.cap * SECOND)
        return replace(trace, after=replace(trace.after, delays_ns=_ns(pauses)))


@dataclass(frozen=True)
class Repeat:
    """The trace repeated `times` times. A repetition starts every `period` seconds, or by default when the previous one
    ends. Each repetition has its own texts, or the same texts with content=shared."""

    times: int
    period: float = 0.0
    content: Literal["fresh", "shared"] = "fresh"

    def __call__(self, trace: Trace, seed: int) -> Trace:
        if not 1 <= self.times <= 10_000:
            raise UserError(f"times is {self.times} but must be from 1 to 10,000")
        if not 0 <= self.period * self.times < LONGEST / SECOND:
            raise UserError(
                f"period is {self.period:g} but must be at least 0, and all repetitions together must fit in 146 years"
            )
        gap = trace.arrival_ns[-1] // max(len(trace) - 1, 1)
        period = round(self.period * SECOND) if self.period else int(trace.arrival_ns[-1] + gap)
        copies = [trace.at(trace.arrival_ns + i * period) for i in range(self.times)]
        return join(trace.name, copies, self.content == "fresh", [f"@{i + 1}" for i in range(self.times)])


@dataclass(frozen=True)
class Mix:
    """Another trace mixed into this one, for the duration of this one. Its rate is scaled so that it contributes a
    fraction `weight` of the requests. Requests without a tenant get the name of their trace as their tenant."""

    weight: float
    trace: str

    def __call__(self, trace: Trace, seed: int) -> Trace:
        from .open import open_trace

        if not 0 < self.weight < 1:
            raise UserError(f"weight is {self.weight:g} but must be between 0 and 1")
        other = open_trace(self.trace, seed=seed)
        span = int(trace.arrival_ns[-1] - trace.arrival_ns[0])
        if span == 0 or len(set(other.arrival_ns.tolist())) < 2:
            raise UserError(
                "requests that all arrive at once have no rate, so they cannot be mixed (set a rate with arrive:)"
            )
        other = other.with_rate((len(trace) - 1) / (span / SECOND) * self.weight / (1 - self.weight))
        other = Window(0, (span + 1) / SECOND)(other, seed)
        parts = [_with_tenant(part) for part in (trace, other.at(other.arrival_ns + trace.arrival_ns[0]))]
        return join(trace.name, parts, True, ["", f"@{other.name}"])


@dataclass(frozen=True)
class Label:
    """Class, tenant or priority for a fraction `share` of the plays. A lower priority is served first. `n` requests n
    samples of equal length for each of their prompts."""

    share: float = 1.0
    slo_class: str = ""
    tenant: str = ""
    priority: int | None = None
    n: int | None = None

    def __call__(self, trace: Trace, seed: int) -> Trace:
        if self.n is not None and not 1 <= self.n <= 1024:
            raise UserError(f"n is {self.n} but must be from 1 to 1,024")
        _check_share(self.share)
        if self.priority is not None and abs(self.priority) >= LONGEST:
            raise UserError(f"priority is {self.priority} but must fit in 62 bits")
        play = trace.plays()
        mine = (draws.uniform(seed, "label", np.arange(play.max() + 1)) < self.share)[play]
        labels = dict(trace.labels)
        for name, text in (("class", self.slo_class), ("tenant", self.tenant)):
            if text:
                before = labels.get(name, ("",) * len(trace))
                labels[name] = tuple(text if m else old for m, old in zip(mine.tolist(), before, strict=True))
        priority = trace.priority if self.priority is None else np.where(mine, self.priority, trace.priority)
        samples = trace.samples if self.n is None else _asking(trace, mine, self.n)
        return replace(trace, labels=labels, priority=priority, samples=samples)


@dataclass(frozen=True)
class Cap:
    """Output cap: max_tokens=`tokens` for every request, or its true output length if that is greater. A request that
    ends before the cap ends with a stop token."""

    tokens: int

    def __call__(self, trace: Trace, seed: int) -> Trace:
        if not 1 <= self.tokens <= MAX_TOKENS:
            raise UserError(f"tokens is {self.tokens} but must be from 1 to {MAX_TOKENS:,}")
        caps = np.maximum(trace.output_len, self.tokens)
        if trace.samples is not None:
            np.maximum.at(caps, trace.samples.rows, trace.samples.output_len)
        return replace(trace, max_tokens=caps, stop=trace.stop | (caps > trace.output_len))


@dataclass(frozen=True)
class Cancel:
    """Cancellation of a fraction `share` of the requests by their clients. The time until then is exponentially
    distributed with a mean of `after` seconds."""

    share: float
    after: float

    def __call__(self, trace: Trace, seed: int) -> Trace:
        _check_share(self.share)
        if not 0 < self.after < LONGEST / SECOND:
            raise UserError(f"after is {self.after:g} but must be above 0 and at most 146 years")
        rows = np.arange(len(trace))
        gone = draws.uniform(seed, "cancel", rows) < self.share
        times = np.maximum(_ns(draws.exponential(seed, "cancel after", rows) * self.after * SECOND), 1)
        return replace(trace, cancel_ns=np.where(gone, times, -1))


STEPS: dict[str, Any] = {
    "window": Window,
    "first": First,
    "where": Where,
    "thin": Thin,
    "stretch": Stretch,
    "ramp": Ramp,
    "arrive": Arrive,
    "shuffle": Shuffle,
    "think": Think,
    "repeat": Repeat,
    "mix": Mix,
    "label": Label,
    "cap": Cap,
    "cancel": Cancel,
    "burst": Burst,
    "growth": Growth,
    "share": Share,
}
WRITTEN = {"for": "lasting"}
"""Parameters whose names in a spec are Python keywords, mapped to the names of their fields."""


def _ns(times: NDArray[Any], scale: float = 1.0) -> Ints:
    """Return times multiplied by `scale`, rounded; raise UserError if they do not fit into 64 bits."""
    with np.errstate(over="ignore"):
        scaled = times * scale
    if not np.all(np.abs(scaled) < LONGEST):
        raise UserError("times would exceed 146 years")
    rounded: Ints = np.rint(scaled).astype(np.int64)
    return rounded


def _check_share(share: float) -> None:
    if not 0 <= share <= 1:
        raise UserError(f"share is {share:g} but must be from 0 to 1")


def _asking(trace: Trace, mine: NDArray[np.bool_], n: int) -> Samples | None:
    """Return the samples of a trace in which some rows request n outputs, each as long as the first."""
    further = np.where(mine, n - 1, trace.n - 1)
    lengths = np.repeat(trace.output_len, further)
    if trace.samples is not None:
        lengths[~np.repeat(mine, further)] = trace.samples.output_len[~mine[trace.samples.rows]]
    return Samples.of(further, lengths)


def _with_tenant(trace: Trace) -> Trace:
    if "tenant" in trace.labels:
        return trace
    return replace(trace, labels={**trace.labels, "tenant": (trace.name,) * len(trace)})


def _moved(trace: Trace, begins: Ints, play: Ints, to: Ints) -> Trace:
    """Move each play to another start time, keeping the offsets of its requests from its start."""
    return trace.at(trace.arrival_ns + (to - begins)[play])


def _keep(trace: Trace, rows: Any) -> Trace:
    kept = np.flatnonzero(rows)
    if not len(kept):
        raise UserError("no requests are left")
    return trace if len(kept) == len(trace) else trace.take(kept)
