"""Simulated queues of known load, to check what `metrics.stability` says of them: how often it calls a queue below
capacity unstable, and how often it finds one above.

`python -m tests.support.queues [FIRST COUNT]` draws queues with these seeds and prints a table. The constants of the
rule were chosen on seeds below 14,000; anything said about it must come from seeds above.
"""

from __future__ import annotations

import argparse
import heapq
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servesim.metrics.load import load_of
from servesim.metrics.stability import judge

Floats = NDArray[np.float64]
Steps = list[tuple[float, int]]
"""Times from which there are so many servers; the first is 0."""

KINDS = ("plain", "plain", "ebb", "ramp", "scaled", "speed", "bursts", "waves", "closed")
"""Constant rate and service (twice as often); arrivals that ebb or rise; servers added in the run; requests that get
longer or shorter; a rate that switches, or moves in waves of a tenth; a closed loop of clients."""
LONGEST = 60_000


@dataclass(frozen=True)
class Queue:
    """A simulated queue, in units of the mean time in service."""

    kind: str
    gaps: str
    servers: int
    fifo: bool
    """Whether requests wait for a server, rather than share them all."""
    late: float
    """Load of the last third, relative to capacity."""
    highest: float
    """Largest load of any part longer than a wave."""
    drawn: float
    """Load of the last half as it was drawn: work that arrived, divided by what the servers could do meanwhile."""
    arrival: Floats
    start: Floats
    end: Floats

    @property
    def span(self) -> float:
        return float(self.arrival[-1] - self.arrival[0])

    def verdict(self) -> str:
        found = load_of(*((times * 1e9).astype(np.int64) for times in (self.arrival, self.start, self.end)))
        return "stable" if found is None else judge(found).says


def draw(seed: int) -> Queue:
    """Return a queue of 1 to 64 servers at a load of .5 to 1.2 whose arrivals span 2 to 5,000 times in service."""
    rng = np.random.default_rng(seed)
    requests = 0
    while not 40 <= requests <= LONGEST:
        servers, load = int(rng.choice([1, 4, 16, 64])), float(rng.uniform(0.5, 1.2))
        requests = int(math.exp(rng.uniform(math.log(2), math.log(5000))) * servers * load)
    kind, fifo = str(rng.choice(KINDS)), bool(rng.choice([True, False]))
    gaps = "mmpp" if kind == "bursts" else str(rng.choice(["poisson", "poisson", "gamma", "even"]))
    sizes = _sizes(rng, str(rng.choice(["even", "exponential", "lognormal", "uniform"])), requests)
    if kind == "closed":
        times = _closed(rng, sizes, servers, clients=max(2, int(servers * load * 2)))
        return Queue(kind, "-", servers, True, 0.0, 0.0, 0.0, *times)
    between = _gaps(rng, gaps, requests) / (servers * load)
    part = np.linspace(0, 1, requests)
    late = highest = load
    if kind == "ebb":
        between *= 0.6 + 1.2 * part
        late = highest = load / 1.5
    elif kind == "ramp":
        between *= 1.4 - 0.7 * part
        late, highest = load / 0.79, load / 0.7
    elif kind == "waves":
        factor = np.repeat(rng.permuted(np.tile([1.5, 0.6], 5)), -(-requests // 10))[:requests]
        between *= factor / factor.mean()
    elif kind == "speed":
        to = float(rng.choice([0.7, 1.3]))
        sizes *= 1 + (to - 1) * part
        late, highest = load * (1 + (to - 1) * 0.85), load * max(1.0, to)
    arrival = np.cumsum(between)
    steps = _scaled(rng, servers, arrival[-1]) if kind == "scaled" else [(0.0, servers)]
    times = _first_come(arrival, sizes, steps) if fifo else _shared(arrival, sizes, steps)
    half = (arrival[0] + arrival[-1]) / 2
    drawn = float(sizes[arrival >= half].sum()) / servers / (arrival[-1] - half)
    return Queue(kind, gaps, servers, fifo, late, highest, drawn, arrival, *times)


def _gaps(rng: np.random.Generator, kind: str, count: int) -> Floats:
    if kind == "even":
        return np.ones(count)
    if kind == "gamma":
        return rng.gamma(0.25, 4.0, count)  # coefficient of variation 2
    if kind == "poisson":
        return rng.exponential(1.0, count)
    times, begin = [], 0.0  # a Poisson process whose rate switches between 1.6 and .4
    while sum(map(len, times)) < count:
        for rate in (1.6, 0.4):
            length = rng.exponential(30.0)
            times.append(begin + np.sort(rng.uniform(0, length, rng.poisson(rate * length))))
            begin += length
    return np.diff(np.concatenate(times)[:count], prepend=0.0)


def _sizes(rng: np.random.Generator, kind: str, count: int) -> Floats:
    """Return times in service with mean 1; the squared coefficient of variation of the lognormal ones is 2."""
    if kind == "even":
        return np.ones(count)
    if kind == "exponential":
        return rng.exponential(1.0, count)
    if kind == "uniform":
        return rng.uniform(0.5, 1.5, count)
    return rng.lognormal(-math.log(3) / 2, math.sqrt(math.log(3)), count)


def _scaled(rng: np.random.Generator, servers: int, span: float) -> Steps:
    """Return steps from a quarter of the servers to all of them, by a quarter each."""
    quarter = max(1, servers // 4)
    steps = [(0.0, quarter)]
    while steps[-1][1] < servers:
        steps.append((steps[-1][0] + rng.uniform(0.03, 0.15) * span, min(servers, steps[-1][1] + quarter)))
    return steps


def _first_come(arrival: Floats, sizes: Floats, steps: Steps) -> tuple[Floats, Floats]:
    free: list[float] = []
    for (since, count), (_, before) in zip(steps, [(0.0, 0), *steps], strict=False):
        free += [since] * (count - before)
    heapq.heapify(free)
    start = np.empty_like(arrival)
    for i, (at, size) in enumerate(zip(arrival.tolist(), sizes.tolist(), strict=True)):
        start[i] = max(at, heapq.heappop(free))
        heapq.heappush(free, start[i] + size)
    return start, start + sizes


def _shared(arrival: Floats, sizes: Floats, steps: Steps) -> tuple[Floats, Floats]:
    """Serve all requests at once, each at the rate min(1, servers / number present)."""
    end = np.empty_like(arrival)
    present: list[tuple[float, int]] = []  # by service received when done, of a request that was there from the start
    served, now, i, step = 0.0, 0.0, 0, 0
    at = [*arrival.tolist(), math.inf]
    while i < len(end) or present:
        rate = min(1.0, steps[step][1] / len(present)) if present else 1.0
        leaves = now + (present[0][0] - served) / rate if present else math.inf
        changes = steps[step + 1][0] if step + 1 < len(steps) else math.inf
        until = min(leaves, at[i], changes)
        served += (until - now) * rate if present else 0.0
        now = until
        if until == leaves:
            end[heapq.heappop(present)[1]] = now
        elif until == at[i]:
            heapq.heappush(present, (served + sizes[i], i))
            i += 1
        else:
            step += 1
    return arrival.copy(), end


def _closed(rng: np.random.Generator, sizes: Floats, servers: int, clients: int) -> tuple[Floats, Floats, Floats]:
    think, spread = float(rng.choice([0.0, 1.0, 5.0])), float(rng.choice([0.0, 1.0, 10.0]))
    sends = sorted(rng.uniform(0, spread, clients).tolist())
    free = [0.0] * servers
    rows = []
    for size in sizes.tolist():
        at = heapq.heappop(sends)
        start = max(at, heapq.heappop(free))
        heapq.heappush(free, start + size)
        heapq.heappush(sends, start + size + think * rng.exponential(1.0))
        rows.append((at, start, start + size))
    arrival, start, end = np.array(sorted(rows)).T
    return arrival, start, end


def tally(queues: Iterator[Queue]) -> dict[str, Counter[str]]:
    """Return the verdicts by group. "below": highest load under 1, at least 20 times in service. "above": at least 1.1
    in the last third, constant rate, at least 500; "above, drawn": also as it was drawn. "long": over 1,000, constant
    rate, load outside .95 to 1.05."""
    found: dict[str, Counter[str]] = {}
    for queue in queues:
        says, steady = queue.verdict(), queue.kind in ("plain", "speed", "scaled", "bursts", "closed")
        groups = []
        if queue.highest < 1 and queue.span >= 20:
            kind = f"below: {queue.kind}"
            load = "below: load over .85" if queue.highest > 0.85 else "below: load to .85"
            groups += ["below", kind, f"below: {queue.servers} servers", f"below: {queue.gaps} gaps", load]
        if queue.late >= 1.1 and queue.span >= 500:
            groups += ["above" if steady else "above, rate drifts", f"above: {queue.kind}"]
            groups += ["above, drawn"] if steady and queue.drawn >= 1.1 else []
        if steady and queue.span > 1000 and (queue.highest < 0.95 or queue.late > 1.05):
            groups += ["long", f"long: {queue.kind}"]
        for group in groups:
            found.setdefault(group, Counter())[says] += 1
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int, nargs="?", default=14_000)
    parser.add_argument("count", type=int, nargs="?", default=4000)
    options = parser.parse_args()
    first, count = options.first, options.count
    for group, says in sorted(tally(map(draw, range(first, first + count))).items()):
        shares = "".join(f"{says[word] / says.total():9.1%} {word}" for word in ("stable", "unstable", "too short"))
        print(f"{group:24}{says.total():6}{shares}")


if __name__ == "__main__":
    main()
