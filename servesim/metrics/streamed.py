"""Figures of requests whose records are not kept: sums, sketches of latencies, and overlaps in time."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from servesim.contracts.request import State
from servesim.metrics.load import EARLY, TENTHS, Load, expected_present, shortest_mean, squared_variation
from servesim.metrics.prefix_cache import RecentHitRate
from servesim.metrics.requests import LATENCIES, MS, TOTALS, Limits, RequestColumns, Service, Stats, looked_up
from servesim.metrics.sketch import Sketch
from servesim.sentinels import NEVER

Times = NDArray[np.int64]


class StreamedPart:
    """A `metrics.requests.Part` to which records are added in pieces. There are no retries, so each row is one
    request."""

    def __init__(self) -> None:
        self._sums: Counter[str] = Counter()
        self._met: Counter[str] = Counter()
        self._sketches = {name: Sketch() for name in LATENCIES}
        self._service = Service(0.0, 0.0, 0, 0.0)
        self._first, self._last = NEVER, -1

    def add(self, columns: RequestColumns, limits: Limits) -> None:
        """Add records; `limits`: the SLO of each request, in ms."""
        for name, of in TOTALS.items():
            self._sums[name] += of(columns)
        for name, sketch in self._sketches.items():
            sketch.add(LATENCIES[name](columns))
        self._met.update(columns.met(limits))
        new = columns.service(NEVER)
        self._service = Service(*[a + b for a, b in zip(self._service, new, strict=True)])  # type: ignore[arg-type]
        self._first = min(self._first, int(columns.table["arrival_ns"].min(initial=NEVER)))
        self._last = max(self._last, int(columns.completed("last_token_ns").max(initial=-1)))

    def total(self, name: str) -> int:
        return self._sums[name]

    def latency_ms(self, name: str) -> Stats:
        return self._sketches[name].describe(MS)

    def met(self, limits: Limits) -> dict[str, int]:
        return dict(self._met)

    def service(self, rows: int) -> Service:
        return self._service

    @property
    def duration_ns(self) -> int:
        return self._last - self._first if self._last >= 0 else 0


class StreamedRequests(StreamedPart):
    """Streamed figures of all requests of a run (`metrics.requests.Requests`)."""

    def __init__(self, origin_ns: int) -> None:
        """Start empty; no request arrives before `origin_ns`."""
        super().__init__()
        self._why: dict[State, Counter[str]] = {}
        self._overlap = Overlap()
        self._grid = LoadGrid(origin_ns)
        self._recent = np.empty((0, 4), dtype=np.int64)  # scheduled, row, prompt, hit

    def take(self, columns: RequestColumns, limits: Limits, settled_ns: int) -> None:
        """Add records. Together with those added before, they must include the records of all requests that arrived
        before `settled_ns` and have ended."""
        self.add(columns, limits)
        for state in (State.FINISHED, State.REJECTED, State.ABORTED):
            self._why.setdefault(state, Counter()).update(columns.why(state))
        self._overlap.add(columns.completed("arrival_ns"), columns.completed("last_token_ns"), settled_ns)
        self._grid.add(*columns.stays())
        names = ("scheduled_ns", "row", "prompt_len", "hit_tokens")
        seen = np.stack([columns.sequences[name] for name in names], axis=1)[looked_up(columns)]
        seen = np.concatenate([self._recent, seen])
        self._recent = seen[np.lexsort((seen[:, 1], seen[:, 0]))][-RecentHitRate().window :]

    def why(self, ended: State) -> dict[str, int]:
        return dict(sorted(self._why.get(ended, Counter()).items()))

    def max_concurrency(self) -> int:
        return self._overlap.most

    def lookups(self, count: int) -> list[tuple[int, int]]:
        return [(prompt, hit) for _, _, prompt, hit in self._recent[-count:].tolist()]

    def load(self) -> Load | None:
        return self._grid.load()


class Overlap:
    """Exact maximum number of overlapping stays, for stays added in the order in which they end."""

    def __init__(self) -> None:
        self.most = 0
        self._enter = self._leave = np.empty(0, dtype=np.int64)  # not settled yet
        self._inside = 0  # settled stays that have not ended

    def add(self, enter: Times, leave: Times, settled_ns: int) -> None:
        """Add stays; no later one begins before `settled_ns`."""
        enter, leave = np.concatenate([self._enter, enter]), np.concatenate([self._leave, leave])
        entered, left = enter < settled_ns, leave < settled_ns
        if entered.any():
            self.most = max(self.most, self._inside + self._peak(np.sort(enter[entered]), np.sort(leave)))
        self._inside += int(entered.sum()) - int(left.sum())
        self._enter, self._leave = enter[~entered], leave[~left]

    def _peak(self, enter: Times, leave: Times) -> int:
        return int((np.arange(1, len(enter) + 1) - np.searchsorted(leave, enter, side="right")).max())


class LoadGrid:
    """Numbers of requests waiting and in the system over time, in bins that double in width as the run goes on: between
    BINS / 2 and BINS bins cover the run, and the edges of tenths are accurate to one bin."""

    BINS = 8192
    SLOTS = 64
    """Number of groups of bins; each group has a sketch of the stays that begin in it."""

    def __init__(self, origin_ns: int) -> None:
        self._origin = origin_ns
        self._width = 1 << 20
        # For arrivals, ends of waits and departures: their number in each bin, and their total time until the bin's
        # end.
        self._count = np.zeros((3, self.BINS), dtype=np.int64)
        self._since = np.zeros((3, self.BINS), dtype=np.int64)
        self._served = np.zeros((2, self.BINS))  # of the arrivals in each bin: those served, and their total time
        self._squares = 0.0  # over all times in service
        self._stays = [Sketch() for _ in range(self.SLOTS)]
        self._first, self._last = NEVER, -1

    def add(self, arrival: Times, waits: Times, leaves: Times) -> None:
        """Add the times at which requests arrived, stopped waiting and left."""
        if not len(arrival):
            return
        self._first, self._last = min(self._first, int(arrival.min())), max(self._last, int(arrival.max()))
        while int(leaves.max()) - self._origin >= self._width * self.BINS:
            self._double()
        for kind, times in enumerate((arrival, waits, leaves)):
            at = times - self._origin
            into = at // self._width
            np.add.at(self._count[kind], into, 1)
            np.add.at(self._since[kind], into, (into + 1) * self._width - at)
        service = (leaves - waits).astype(np.float64)
        begun = (arrival - self._origin) // self._width
        np.add.at(self._served[0], begun, service > 0)
        np.add.at(self._served[1], begun, service)
        self._squares += float(np.dot(service, service))
        slots = begun * self.SLOTS // self.BINS
        for slot in np.unique(slots).tolist():
            self._stays[slot].add((leaves - arrival)[slots == slot])

    def _double(self) -> None:
        half, count, since = self.BINS // 2, self._count, self._since
        pairs = since[:, ::2] + since[:, 1::2] + count[:, ::2] * self._width
        self._since, self._count = np.zeros_like(since), np.zeros_like(count)
        self._since[:, :half], self._count[:, :half] = pairs, count[:, ::2] + count[:, 1::2]
        self._served[:, :half], self._served[:, half:] = self._served[:, ::2] + self._served[:, 1::2], 0.0
        for sketch, later in zip(self._stays[::2], self._stays[1::2], strict=True):
            sketch.add(*later.buckets())
        self._stays = self._stays[::2] + [Sketch() for _ in range(self.SLOTS // 2)]
        self._width *= 2

    def load(self) -> Load | None:
        """Return the load as `load.load_of` does, or None if all requests arrive at the same time."""
        span = self._last - self._first
        if span < TENTHS:
            return None
        edges = self._first + span * np.arange(TENTHS + 1) // TENTHS
        position = (edges - self._origin) / self._width
        before = np.concatenate([np.zeros((3, 1), dtype=np.int64), np.cumsum(self._count, axis=1)], axis=1)
        bins = np.arange(self.BINS + 1)
        means = []
        for kind in (1, 2):
            present = before[0] - before[kind]
            gained = self._since[0] - self._since[kind] + self._width * present[:-1]
            integral = np.interp(position, bins, np.concatenate([[0], np.cumsum(gained, dtype=np.float64)]))
            means.append(np.diff(integral) / np.diff(edges))
        arrived = np.interp(position, bins, before[0]).astype(np.int64)
        arrived[0], arrived[-1] = 0, before[0, -1]
        count, total = self._served.sum(axis=1).tolist()
        served = [np.interp(position, bins, np.concatenate([[0.0], np.cumsum(row)])) for row in self._served]
        for ends, last in zip(served, (count, total), strict=True):
            ends[0], ends[-1] = 0.0, last
        return Load(
            waiting=means[0],
            in_system=means[1],
            arrived=arrived,
            explained=expected_present(arrived, span / TENTHS, *self._early(position[EARLY])),
            service_ns=shortest_mean(*served),
            service_cv2=squared_variation(int(count), total, self._squares),
            span_ns=span,
        )

    def _early(self, end: float) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return the stays that begin before bin `end`, to the next slot, and their counts; if none do, all stays."""
        first = math.ceil(end * self.SLOTS / self.BINS)
        for sketches in (self._stays[:first], self._stays):
            found = Sketch()
            for sketch in sketches:
                found.add(*sketch.buckets())
            stays, counts = found.buckets()
            if counts.sum():
                break
        return stays, counts
