"""KV transfers as flows over links: start-up time, fair shares, and the cost of small messages.

A transfer uses the outbound link of its source and the inbound link of its destination. It waits `start_ns`, then moves
at its max-min fair share of both, like connections that are served equally. While the links of a replica are slow, they
have less bandwidth, also for transfers in flight; `start_ns` stays. All values are integers: rates are bytes
per second, rounded down, times are ns, and the remainder of a transfer is counted in billionths of a byte, so that no
rounding depends on other transfers in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from simpy.events import Event

from servesim.contracts.request import Request
from servesim.engine.clock import LOADED
from servesim.engine.pool import Pool
from servesim.features.handoff.wire import Wire

NANO = 1_000_000_000
INTO = 1 << 32
"""Number added to a replica's index to name its inbound link; the index itself names its outbound link."""


@dataclass(frozen=True)
class LinkKind:
    """A kind of link, as measured or stated."""

    gb_s: float
    """Bandwidth of one GPU in each direction, GB/s (1e9 bytes)."""
    start_us: float
    """Microseconds from the request to the first byte."""
    source: str
    """Source of the figures."""


KINDS: Mapping[str, LinkKind] = {
    "rdma-200": LinkKind(
        17.4,
        415.0,
        "fitted to six transfer times of Mooncake's connector for vLLM between H800 servers (Qwen3-8B TP8, 20 MB "
        "to 4.5 GB over 8 NICs of 200 Gb/s): 70 % of the line rate, all within 4 %",
    ),
    "rdma-400": LinkKind(34.8, 415.0, "not measured: twice the bandwidth of rdma-200, same start-up time"),
    "nvlink": LinkKind(350.0, 50.0, "not measured here: 300 to 400 of an H100's 450 GB/s are reported to be usable"),
    "tcp-100": LinkKind(5.0, 1000.0, "not measured here: 3 to 8 GB/s are reported to be usable"),
}
"""Links by name. Only rdma-200 is fitted to measured transfers."""


@dataclass(eq=False)
class Flow:
    """A transfer under way."""

    number: int
    ends: tuple[int, int]
    """The links it uses: outbound of the source, inbound of the destination."""
    left: int
    """Billionths of a byte still to be sent."""
    done: Callable[[], None]
    rate: int = field(default=0)
    """Bytes per second."""
    stopped: bool = field(default=False)


class Links(Wire):
    """Links of all replicas: bytes per second `out` of and `into` each, by replica index, and in both directions for
    each replica that is added later, by its pool (`rate_of`). Transfers consist of messages of `message_bytes`, each of
    which takes as long as if it had `overhead_bytes` more."""

    def __init__(
        self,
        out: Sequence[int],
        into: Sequence[int],
        start_ns: int,
        overhead_bytes: int = 0,
        message_bytes: int = 1,
        rate_of: Callable[[Pool], int] | None = None,
    ) -> None:
        self._overhead, self._message = overhead_bytes, message_bytes
        self._capacity = dict(enumerate(out)) | {INTO + index: rate for index, rate in enumerate(into)}
        self._full = dict(self._capacity)
        self._factors: dict[int, float] = {}  # by replica
        self._rate_of = rate_of
        self._start_ns = start_ns
        self._flows: list[Flow] = []
        self._next = 0
        self._since_ns = 0
        self._awaited: Event | None = None
        self.busy_ns = 0
        """Time during which any transfer was in flight."""

    def attach(self, index: int, pool: Pool) -> None:
        if index not in self._capacity:
            assert self._rate_of is not None
            self._full[index] = self._full[INTO + index] = self._rate_of(pool)
            self._limit(index)

    def slow(self, index: int, factor: float) -> None:
        self._factors[index] = factor
        if index in self._full:
            self._advance()
            self._limit(index)
            self._share()

    def _limit(self, index: int) -> None:
        """Set the bandwidth that both links of a replica have now."""
        for end in (index, INTO + index):
            self._capacity[end] = max(round(self._full[end] / self._factors.get(index, 1.0)), 1)

    def send(
        self, source: int, destination: int, num_bytes: int, request: Request, done: Callable[[], None]
    ) -> Callable[[], None]:
        num_bytes += -(-num_bytes // self._message) * self._overhead
        flow = Flow(self._next, (source, INTO + destination), num_bytes * NANO, done)
        self._next += 1
        self.clock.at(self.clock.ns + self._start_ns, LOADED, lambda event: self._begin(flow))
        return lambda: self._stop(flow)

    def _stop(self, flow: Flow) -> None:
        """Break a transfer off; the others share its bandwidth from now on."""
        flow.stopped = True
        if flow in self._flows:
            self._advance()
            self._flows.remove(flow)
            self._share()

    def _begin(self, flow: Flow) -> None:
        if flow.stopped:
            return
        self._advance()
        self._flows.append(flow)
        self._share()

    def _advance(self) -> None:
        """Advance all flows to this instant."""
        now = self.clock.ns
        elapsed = now - self._since_ns
        self._since_ns = now
        if elapsed and self._flows:
            self.busy_ns += elapsed
            for flow in self._flows:
                flow.left -= flow.rate * elapsed

    def _share(self) -> None:
        """Assign every flow its fair rate, and wait for the first flow to end."""
        self._awaited = None
        if not self._flows:
            return
        for flow, rate in zip(self._flows, fair_shares([f.ends for f in self._flows], self._capacity), strict=True):
            flow.rate = rate
        ns = max(min([-(-flow.left // flow.rate) for flow in self._flows]), 0)
        self._awaited = self.clock.at(self.clock.ns + ns, LOADED, self._ended)

    def _ended(self, event: Event) -> None:
        if event is not self._awaited:
            return  # another flow has begun since
        self._advance()
        done = [flow for flow in self._flows if flow.left <= 0]
        self._flows = [flow for flow in self._flows if flow.left > 0]
        self._share()
        for flow in done:
            if not flow.stopped:
                flow.done()


def fair_shares(flows: Sequence[tuple[int, int]], capacity: Mapping[int, int]) -> list[int]:
    """Return the max-min fair rate of each flow over the links it uses, in whole bytes per second, at least 1. The link
    with the smallest share per flow fixes the rates of its flows; the step is then repeated with the remaining flows
    and capacity (progressive filling)."""
    if len(flows) == 1:
        return [max(min([capacity[end] for end in flows[0]]), 1)]
    left = dict(capacity)
    users: dict[int, list[int]] = {}
    for i, ends in enumerate(flows):
        for end in ends:
            users.setdefault(end, []).append(i)
    rates = [0] * len(flows)
    open_flows = set(range(len(flows)))
    while open_flows:
        link = min((end for end in sorted(users) if users[end]), key=lambda end: left[end] // len(users[end]))
        rate = max(left[link] // len(users[link]), 1)
        for i in list(users[link]):
            rates[i] = rate
            open_flows.discard(i)
            for end in flows[i]:
                users[end].remove(i)
                left[end] -= rate
    return rates
