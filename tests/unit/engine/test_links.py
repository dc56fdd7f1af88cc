"""Transfers as flows: fair shares of links, exact times, and a slow reference that goes nanosecond by nanosecond."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from servesim.contracts.request import Request
from servesim.engine.clock import LOADED, REPORT, Clock
from servesim.engine.pool import Pool
from servesim.features.handoff.links import KINDS, Links, fair_shares
from servesim.features.handoff.wire import FixedRate
from tests.support.examples import examples
from tests.support.worlds import ToyCost

GB = 1_000_000_000
REQUEST = Request(0, "r", 1, 1, 0)


def run(links: Any, sends: list[tuple[int, int, int, int]]) -> list[int]:
    """When each of (at ns, source, destination, bytes) has come."""
    clock, came = Clock(), [-1] * len(sends)
    links.join(clock)

    def begin(i: int) -> None:
        _, source, destination, size = sends[i]
        links.send(source, destination, size, REQUEST, lambda: came.__setitem__(i, clock.ns))

    for i, (at, *_) in enumerate(sends):
        clock.at(at, LOADED, lambda event, i=i: begin(i))
    clock.run()
    return came


def test_a_transfer_alone_takes_start_up_and_bytes_over_the_narrower_end() -> None:
    assert run(Links([4 * GB, GB], [GB, 2 * GB], 500), [(100, 0, 1, 2000)]) == [100 + 500 + 1000]
    assert run(Links([4 * GB, GB], [GB, 3 * GB], 0), [(0, 0, 1, 1000)]) == [334], "rounded up"


def test_two_out_of_one_source_share_it_and_the_second_speeds_up_when_the_first_is_done() -> None:
    links = Links([GB, GB, GB], [GB, GB, GB], 0)
    # both at 0.5 B/ns: the first is done after 2,000 ns; of the second's 3,000 bytes 2,000 are left then, at 1 B/ns
    assert run(links, [(0, 0, 1, 1000), (0, 0, 2, 3000)]) == [2000, 4000]
    assert links.busy_ns == 4000


def test_what_one_flow_cannot_use_goes_to_others() -> None:
    # the second is held to 1 by its destination, so that the first has 3 of the source's 4
    assert fair_shares([(0, 2), (0, 3)], {0: 4, 2: 9, 3: 1}) == [3, 1]


def test_messages_have_the_efficiency_of_their_size() -> None:
    # 10 messages of 100 bytes, each as long as 125: 1,250 ns
    assert run(Links([GB], [GB], 0, overhead_bytes=25, message_bytes=100), [(0, 0, 0, 1000)]) == [1250]


def test_at_a_fixed_rate_nothing_is_shared() -> None:
    assert run(FixedRate(2.0), [(0, 0, 1, 1000), (0, 0, 1, 1000), (7, 0, 1, 1)]) == [500, 500, 8]


def slowed(links: Any, periods: list[tuple[int, int, float]], sends: list[tuple[int, int, int, int]]) -> list[int]:
    """When each has come, if the bandwidth of replicas is divided, in order: (at ns, replica, by)."""
    join = links.join

    def joined(clock: Clock) -> None:
        join(clock)
        for at, index, factor in periods:
            clock.at(at, REPORT, lambda event, index=index, factor=factor: links.slow(index, factor))

    links.join = joined
    return run(links, sends)


def test_a_slow_link_doubles_the_time_of_a_transfer_that_starts_later_and_the_rest_of_one_in_flight() -> None:
    # 1,000 bytes at 1 B/ns: half are sent at 500, the rest takes 1,000
    assert slowed(Links([GB, GB], [GB, GB], 0), [(0, 0, 2.0)], [(0, 0, 1, 1000)]) == [2000]
    assert slowed(Links([GB, GB], [GB, GB], 0), [(500, 0, 2.0)], [(0, 0, 1, 1000), (1500, 0, 1, 1000)]) == [1500, 3500]
    assert slowed(Links([GB, GB], [GB, GB], 0), [(500, 1, 2.0), (900, 1, 1.0)], [(0, 0, 1, 1000)]) == [1200]
    assert slowed(Links([GB, GB], [GB, GB], 300), [(0, 0, 2.0)], [(0, 0, 1, 1000)]) == [2300], "start-up stays"


def test_a_transfer_that_ends_when_its_link_becomes_slow_has_ended() -> None:
    assert slowed(Links([GB, GB], [GB, GB], 0), [(1000, 0, 9.0)], [(0, 0, 1, 1000)]) == [1000]


def test_a_replica_that_is_slow_before_it_is_connected_is_slow_then() -> None:
    links = Links([GB], [GB], 0, rate_of=lambda pool: 4 * GB)
    links.slow(1, 8.0)
    links.attach(1, Pool([], ToyCost(), 1))
    assert run(links, [(0, 0, 1, 1000)]) == [2000]


def test_at_a_fixed_rate_a_transfer_is_slow_if_it_begins_while_either_end_is() -> None:
    sends = [(0, 0, 1, 1000), (100, 0, 1, 1000), (100, 1, 0, 1000), (100, 1, 2, 1000)]
    assert slowed(FixedRate(2.0), [(100, 0, 2.0)], sends) == [500, 1100, 1100, 600]


def slow_reference(rates: list[int], sends: list[tuple[int, int, int, int]], start: int) -> list[int]:
    """The same, one ns at a time: in each, every flow that is on its way moves its max-min share, found by raising all
    rates together, bit by bit, until a link is full."""
    num = len(rates)
    left = {i: Fraction(size) for i, (*_, size) in enumerate(sends)}
    came = [-1] * len(sends)
    now = 0
    while left:
        active = [i for i in left if sends[i][0] + start <= now]
        for i in [i for i in active if left[i] <= 0]:
            del left[i]
            came[i] = now
        active = [i for i in active if i in left]
        ends = {i: (sends[i][1], num + sends[i][2]) for i in active}
        share = dict.fromkeys(active, Fraction(0))
        rising = set(active)
        capacity = [Fraction(rate, GB) for rate in rates * 2]
        while rising:
            room = {
                link: (capacity[link] - sum(share[i] for i in active if link in ends[i]))
                / sum(1 for i in rising if link in ends[i])
                for link in {link for i in rising for link in ends[i]}
            }
            step = min(room.values())
            for i in rising:
                share[i] += step
            full = {link for link, spare in room.items() if spare == step}
            rising = {i for i in rising if not full & set(ends[i])}
        for i in active:
            left[i] -= share[i]
        now += 1
    return came


SENDS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 2), st.integers(0, 2), st.integers(0, 80)), min_size=1, max_size=5
)


@examples(60)
@given(SENDS, st.lists(st.sampled_from([GB, 2 * GB, 3 * GB]), min_size=3, max_size=3), st.sampled_from([0, 13]))
def test_times_are_those_of_a_simulation_that_goes_ns_by_ns(
    sends: list[tuple[int, int, int, int]], rates: list[int], start: int
) -> None:
    """Within the ns that each end of another transfer rounds up to."""
    exact, found = slow_reference(rates, sends, start), run(Links(rates, rates, start), sends)
    for slow, fast in zip(exact, found, strict=True):
        assert abs(fast - slow) <= len(sends)


@examples(100)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(4, 7)), min_size=1, max_size=8),
    st.lists(st.integers(1_000, 10**12), min_size=8, max_size=8),
)
def test_no_link_carries_more_than_it_can_and_each_flow_is_held_by_one_that_is_full(
    flows: list[tuple[int, int]], capacity: list[int]
) -> None:
    rates = fair_shares(flows, dict(enumerate(capacity)))
    carried = [sum(rate for rate, ends in zip(rates, flows, strict=True) if link in ends) for link in range(8)]
    assert all(used <= most for used, most in zip(carried, capacity, strict=True))
    for rate, ends in zip(rates, flows, strict=True):
        assert any(
            carried[link] + len(flows) >= capacity[link]
            and rate == max(r for r, others in zip(rates, flows, strict=True) if link in others)
            for link in ends
        )


def test_every_kind_of_link_says_where_its_figures_are_from() -> None:
    assert all(kind.source and kind.gb_s > 0 for kind in KINDS.values())
