"""Decisions: is a choice between measured servers right if it is based on simulations of them?

There are two kinds. A **pair** is two sizes of one product (the same number of clients per GPU, different numbers of
GPUs), two engines (the same model, GPUs and clients), or two commands that differ in one setting; the question is which
gives more output per GPU. A **choice** is made among all sizes and concurrencies of a product: the option with the most
output per GPU whose TPOT is within a limit. Output per GPU is computed for a closed loop of C clients, C x output
length / (E2E x GPUs), unless it was measured directly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import log
from typing import Any

import numpy as np

from servesim.experiments.named import grouped

LIMITS_MS = (10.0, 15.0, 20.0, 30.0, 50.0, 100.0)
"""TPOT limits for choices, from 100 down to 10 tokens/s per user."""
SLACK = 0.05
"""Relative overrun of a limit that is tolerated, because repeats of a measurement differ by 3.4 % on average."""
APART = 0.05
"""Relative difference between outputs above which repeats rarely reverse the order."""
BITS = {"fp8": 8, "awq": 4}
"""Bits per weight by format label; 16 for other formats."""
NEAR = 0.1
"""Relative distance from the best output per GPU within which a choice counts as equally good."""
DEFINITIONS = {
    "settings": "runs described by their commands that share model, GPU, lengths and clients, and differ in one flag, "
    "in the weight format, in parallelism or in the engine",
    "pairs": "cells of two servers with equal clients per GPU (sizes) or with equal clients and GPUs (engines); "
    "right: the server with more measured output per GPU also has more simulated output; apart: pairs whose "
    f"measured outputs differ by more than {APART:.0%}; near: right, or within {NEAR:.0%} of the better",
    "naive": "sizes: assume that the fewest GPUs, or the fewest bits, give the most output per GPU; choices: the "
    "fewest GPUs that can meet the limit, at as many clients as a load test of that server allows",
    "ceiling": "the share that a predictor with the true means would get right, given the noise of measurements: "
    "repeats with the same labels and a stated version show how far two measurements differ by chance",
    "choices": f"kept: the measured TPOT of the chosen server exceeds the limit by at most {SLACK:.0%}; near: kept, "
    f"and its measured output per GPU is at least {1 - NEAR:.0%} of the best that meets the limit; declined: no "
    "simulated server meets it",
    "limits": f"TPOT of {', '.join(f'{limit:g}' for limit in LIMITS_MS)} ms, for products of at least two sizes of "
    "which some measured cells meet the limit and others do not",
}


@dataclass(frozen=True)
class Option:
    """One server at one concurrency; times in ms."""

    product: tuple[str, ...]
    lengths: tuple[int, int]
    gpus: int
    concurrency: int
    output_mean: float
    measured: tuple[float, float]
    """TTFT and TPOT."""
    simulated: tuple[float, float]
    server: tuple[str | int, ...] = ()
    """Key that distinguishes two servers of the same product and size."""
    rates: tuple[float, float] | None = None
    """Measured and simulated output tokens/s of the server, or None to use the rates of a closed loop."""
    flags: tuple[tuple[str, str], ...] | None = None
    """Flags of the command, excluding parallelism."""

    def output(self, times: tuple[float, float]) -> float:
        """Return the output tokens/s per GPU of a closed loop with these times."""
        ttft, tpot = times
        return 1e3 * self.concurrency * self.output_mean / (ttft + (self.output_mean - 1) * tpot) / self.gpus

    @property
    def outputs(self) -> tuple[float, float]:
        """Output tokens/s per GPU, measured and simulated."""
        if self.rates is not None:
            return self.rates[0] / self.gpus, self.rates[1] / self.gpus
        return self.output(self.measured), self.output(self.simulated)

    @property
    def settings(self) -> frozenset[tuple[str, object]]:
        """Settings of a command: engine, format, sizes and flags."""
        sizes = zip(("tp", "pp", "dp", "moe tp", "ep"), self.server, strict=False)
        named = (("engine", self.product[0]), ("format", self.product[5]))
        return frozenset((*named, *sizes, *((f"--{name}", value) for name, value in self.flags or ())))


@dataclass(frozen=True)
class Pair:
    """Two options compared by output per GPU; figures are log ratios of the first to the second."""

    kind: str
    first: Option
    second: Option

    @property
    def measured(self) -> float:
        """Log ratio of the measured outputs."""
        return log(self.first.outputs[0] / self.second.outputs[0])

    @property
    def simulated(self) -> float:
        """Log ratio of the simulated outputs."""
        return log(self.first.outputs[1] / self.second.outputs[1])

    @property
    def named(self) -> tuple[str, ...]:
        """Names of the settings that differ between the two commands."""
        return tuple(sorted({name for name, _ in self.first.settings ^ self.second.settings}))

    @property
    def right(self) -> bool:
        """Whether the measured and simulated ratios have the same sign."""
        return self.measured * self.simulated > 0

    @property
    def apart(self) -> bool:
        """Whether the measured outputs differ by more than `APART`."""
        return abs(self.measured) > log(1 + APART)

    @property
    def near(self) -> bool:
        """Whether the chosen option gives at least 1 - `NEAR` of the other's measured output."""
        return self.right or abs(self.measured) <= -log(1 - NEAR)

    @property
    def naive(self) -> bool | None:
        """Whether the rule of fewest GPUs or fewest bits is right; None if the rule does not apply, e.g. between
        engines or flags."""
        sizes = (self.first.gpus, self.second.gpus)
        if self.kind == "settings" and self.named == ("format",):
            sizes = (BITS.get(self.first.product[5], 16), BITS.get(self.second.product[5], 16))
        if sizes[0] == sizes[1]:
            return None
        return (self.measured > 0) == (sizes[0] < sizes[1])


def same_places(options: Sequence[Option]) -> Mapping[Any, list[Option]]:
    """Return the options grouped by the key that repeated measurements share."""
    return grouped(((one.product, one.lengths, one.server, one.gpus, one.concurrency), one) for one in options)


def merged(options: Sequence[Option]) -> list[Option]:
    """Return one option per place, with the geometric mean of the measured times of its repeats."""
    return [_mean(same) for same in same_places(options).values()]


def _mean(same: Sequence[Option]) -> Option:
    if len(same) == 1:
        return same[0]  # exact, because limits are round numbers
    ttft, tpot = (float(np.exp(np.mean([log(one.measured[i]) for one in same]))) for i in (0, 1))
    return replace(same[0], measured=(ttft, tpot))


_KINDS: dict[str, tuple[Callable[[Option], object], Callable[[Pair], bool]]] = {
    "sizes": (
        lambda one: (one.product, one.lengths, one.concurrency / one.gpus),
        lambda pair: pair.first.gpus != pair.second.gpus,
    ),
    "engines": (
        lambda one: (one.product[2:], one.lengths, one.concurrency, one.gpus),
        lambda pair: pair.first.product[0] != pair.second.product[0],
    ),
    "settings": (
        lambda one: (one.product[2], one.product[3], one.lengths, one.concurrency),
        lambda pair: len(pair.named) == 1,
    ),
}
"""Kinds of pairs: the key that both options share, and whether they differ in what is compared."""


def pairs(options: Sequence[Option]) -> Iterator[Pair]:
    """Yield every pair of sizes, then every pair of engines, then every pair of commands that differ in one setting."""
    for kind, (key, differs) in _KINDS.items():
        asked = [one for one in options if (one.flags is not None) == (kind == "settings")]
        for group in grouped((key(one), one) for one in asked).values():
            for pair in (Pair(kind, first, second) for first, second in combinations(group, 2)):
                if differs(pair) and pair.measured != 0:
                    yield pair


@dataclass(frozen=True)
class Choice:
    """Options of a product at one pair of lengths, under a TPOT limit in ms."""

    limit_ms: float
    options: tuple[Option, ...]

    def chosen(self, times: Sequence[tuple[float, float]]) -> Option | None:
        """Return the option with the most output per GPU whose TPOT is within the limit, or None if there is none."""
        keep = [
            (o.output(t), -i) for i, (o, t) in enumerate(zip(self.options, times, strict=True)) if t[1] <= self.limit_ms
        ]
        return self.options[-max(keep)[1]] if keep else None

    @property
    def simulated(self) -> Option | None:
        """Option chosen based on the simulated times."""
        return self.chosen([one.simulated for one in self.options])

    @property
    def best(self) -> Option | None:
        """Option chosen based on the measured times."""
        return self.chosen([one.measured for one in self.options])

    @property
    def naive(self) -> Option | None:
        """Best measured option among those with the fewest GPUs that can meet the limit."""
        kept = [one for one in self.options if one.measured[1] <= self.limit_ms]
        fewest = min((one.gpus for one in kept), default=0)
        return Choice(self.limit_ms, tuple(one for one in kept if one.gpus == fewest)).best

    def outcome(self, taken: Option | None) -> str:
        """Return `declined`, `broken` (limit exceeded), `far` (limit kept, less output) or `near` (kept, near the
        best)."""
        if taken is None:
            return "declined"
        if taken.measured[1] > self.limit_ms * (1 + SLACK):
            return "broken"
        best = self.best
        assert best is not None
        return "near" if taken.output(taken.measured) >= (1 - NEAR) * best.output(best.measured) else "far"


def choices(options: Sequence[Option]) -> Iterator[Choice]:
    """Yield every valid choice; see `DEFINITIONS`."""
    points = [one for one in options if one.flags is None]  # runs from commands are not points of a curve
    for group in grouped(((one.product, one.lengths), one) for one in points).values():
        for limit in LIMITS_MS:
            kept = sum(one.measured[1] <= limit for one in group)
            if 0 < kept < len(group) and len({one.gpus for one in group}) > 1:
                yield Choice(limit, tuple(group))
