"""Contiguous reservations: what is promised, where it goes, and what is wasted."""

from __future__ import annotations

from typing import Any

import pytest

from servesim.contracts import MISS, Batch, KVMemory, Request, State, build_params, kv_allocators
from servesim.engine.fast.kv import FastContiguous
from servesim.errors import UserError
from servesim.policies.kv._address_space import Buddies, Stretches
from servesim.policies.kv.contiguous import ContiguousParams
from servesim.records.columns import REQUEST_COLUMNS
from tests.support.worlds import ToyCost, World, toy_trace


def contiguous(slots: int, max_model_len: int = 2048, **params: Any) -> Any:
    cls, _ = kv_allocators.resolve("contiguous")
    kv: Any = cls(build_params("contiguous", cls.Params, params), KVMemory(slots, 1, max_model_len))
    kv.output_len = lambda request: request._end_tokens - request.prompt_len
    return kv


def request(row: int, prompt: int, output: int) -> Request:
    made = Request(row, str(row), prompt, output, 0)
    made._end_tokens = prompt + output
    return made


def admit(kv: Any, *requests: Request) -> list[bool]:
    """One after the other, each as far as its prompt; whether it could be."""
    done = []
    for each in requests:
        done.append(kv.can_admit(each, MISS, each.prompt_len, each.prompt_len, 0))
        if done[-1]:
            kv.admit(each, MISS, each.prompt_len, 0)
            each.state, each.num_computed_tokens = State.RUNNING, each.prompt_len
            kv.held_tokens += each.prompt_len
        kv.check_integrity()
    return done


def release(kv: Any, each: Request) -> None:
    kv.held_tokens -= each.num_computed_tokens
    kv.free(each)
    kv.check_integrity()


def test_fifteen_thousand_slots_hold_seven_requests_of_the_longest_kind() -> None:
    """PagedAttention's OPT-13B: 12 GiB are 15,728 slots, and Orca (Max) batched 7.00 requests."""
    for fit in ("buddy", "first", "best"):
        kv = contiguous(15_728, fit=fit)
        assert admit(kv, *(request(i, 161, 338) for i in range(8))) == [True] * 7 + [False]
        assert kv.usage() == (7 * 161, 7 * (2048 - 161), 1392, 0)


def test_reservations_follow_the_paper() -> None:
    for prompt, output, pow2 in ((100, 200, 356), (25, 25, 57), (25, 32, 57), (25, 33, 89), (1, 1, 2)):
        asked = request(0, prompt, output)
        assert contiguous(15_728, reservation="max").reservation(asked) == 2048
        assert contiguous(15_728, reservation="pow2").reservation(asked) == pow2
        assert contiguous(15_728, reservation="oracle").reservation(asked) == prompt + output


def test_nothing_is_reserved_beyond_the_longest_sequence_there_is() -> None:
    assert contiguous(15_728, reservation="pow2").reservation(request(0, 1900, 140)) == 2048


def test_growth_inside_a_reservation_never_fails_and_beyond_it_always_does() -> None:
    kv = contiguous(512, 512, reservation="oracle", fit="first")
    one, rest = request(0, 10, 20), request(1, 400, 82)
    assert admit(kv, one, rest) == [True, True]
    assert kv.usage().free == 0
    assert kv.grow(one, 20)
    assert not kv.grow(one, 21)


def test_external_waste_is_what_the_mean_chunk_does_not_fit_in() -> None:
    kv = contiguous(100, 100, reservation="oracle", fit="first")
    a, b, c, d = (request(i, 10, n) for i, n in enumerate((20, 10, 20, 20)))
    assert admit(kv, a, b, c, d) == [True, True, True, False]  # 30 + 20 + 30, 20 left; the mean chunk is 27
    assert kv.usage() == (30, 50, 20, 0)
    release(kv, b)  # two holes of 20
    assert kv.usage() == (20, 40, 40, 0)
    assert not kv.can_admit(d, MISS, 10, 10, 0)
    release(kv, c)  # one hole of 70
    assert kv.usage() == (10, 20, 0, 70)


def test_compaction_makes_one_hole_of_many_and_charges_the_copy() -> None:
    kv = contiguous(100, 100, reservation="oracle", fit="first", compaction=True)
    a, b, c, d = (request(i, 10, n) for i, n in enumerate((20, 10, 20, 20)))
    admit(kv, a, b, c)
    release(kv, b)
    assert kv.copied_tokens == 0
    assert kv.can_admit(d, MISS, 10, 10, 10)
    assert not kv.can_admit(d, MISS, 10, 10, 11), "10 of 40 are left"
    assert admit(kv, d) == [True]
    assert kv.copied_tokens == 10, "c slid down with the 10 tokens it had computed"
    assert kv.chunks == {a: (0, 30), c: (30, 30), d: (60, 30)}


def test_a_copy_is_charged_to_the_step_that_needed_it() -> None:
    """Rows 0 and 2 stay, row 1 leaves a hole of 12 beside one of 56; row 3 wants 60."""
    trace = toy_trace([0, 0, 0, 1], [10, 10, 10, 30], [60, 2, 60, 30])
    seen: list[tuple[int, int]] = []

    class Spy(ToyCost):
        def price(self, batch: Batch) -> Any:
            seen.append((batch.bytes_copied, len(batch.prefill)))
            return super().price(batch)

    def scheduled(compaction: int) -> int:
        kv = f"contiguous:reservation=oracle,fit=first,compaction={compaction}"
        rows = World(trace, kv, 13, 16, max_model_len=90, cost=Spy()).run(check=True).recorder.requests.array()
        return int(rows[rows[:, 0] == 3, REQUEST_COLUMNS.index("scheduled_ns")][0])

    late = scheduled(0)
    assert not any(copied for copied, _ in seen)
    assert scheduled(1) < late
    assert [step for step in seen if step[0]] == [(11, 1)], "row 2, prompt and one token, moves in the step of row 3"


def test_each_copied_token_is_charged_once() -> None:
    """Twice, one after the other: rows 0 and 2 stay, row 1 leaves a hole between them, and row 3 needs all there is."""
    trace = toy_trace([0, 0, 0, 1, *[50_000] * 3, 50_001], [10, 10, 10, 30] * 2, [60, 2, 60, 30] * 2)
    seen: list[int] = []

    class Spy(ToyCost):
        def price(self, batch: Batch) -> Any:
            seen.append(batch.bytes_copied)
            return super().price(batch)

    world = World(trace, "contiguous:reservation=oracle,fit=first,compaction=1", 13, 16, max_model_len=90, cost=Spy())
    cluster = world.cluster("reference", check=True)
    cluster.run()
    kv = cluster.replicas[0].core.kv
    assert sum(copied > 0 for copied in seen) > 1
    assert sum(seen) == kv.copied_tokens * kv.memory.bytes_per_token


def test_best_fit_spares_the_large_hole_that_first_fit_breaks() -> None:
    first, best = Stretches(100), Stretches(100, best=True)
    for space in (first, best):
        for size in (40, 10, 20, 30):
            space.take(size)
        space.give(0, 40)
        space.give(50, 20)
    assert (first.find(15), best.find(15)) == (0, 50)
    assert (first.find(41), best.find(41)) == (None, None)


def test_buddies_of_a_space_that_is_no_power_of_two() -> None:
    space = Buddies(15_728)
    assert [size for _, size in sorted(space.holes())] == [8192, 4096, 2048, 1024, 256, 64, 32, 16]
    starts = [space.take(2048) for _ in range(7)]
    assert starts == [12_288, 8192, 10_240, 0, 2048, 4096, 6144]
    assert space.find(2048) is None
    assert space.find(1024) == 14_336
    for start in starts[::2] + starts[1::2]:
        space.give(start, 2048)
    assert [size for _, size in sorted(space.holes())] == [8192, 4096, 2048, 1024, 256, 64, 32, 16], "joined again"


def test_compacted_buddies_fill_large_chunks_with_large_ones() -> None:
    space = Buddies(12)
    chunks = {"a": (space.take(1), 1), "b": (space.take(4), 4), "c": (space.take(2), 2)}
    assert chunks == {"a": (8, 1), "b": (0, 4), "c": (10, 2)}
    dense, starts = space.compacted(chunks)
    assert starts == {"b": 8, "c": 0, "a": 2}
    assert sorted(dense.holes()) == [(3, 1), (4, 4)]


def test_a_reservation_that_can_never_be_kept_is_refused_at_start_up() -> None:
    with pytest.raises(
        UserError, match=r"contiguous: .* needs 16384 contiguous tokens .*Set engine.max_model_len to 8192"
    ):
        contiguous(15_728, 9000)
    assert not contiguous(15_728, 9000, reservation="oracle").fits(request(0, 8000, 500))
    assert contiguous(15_728, 9000, reservation="oracle", fit="first").fits(request(0, 8000, 500))


def test_only_reservations_by_true_length_are_oracles() -> None:
    assert not contiguous(100, 50).needs
    assert contiguous(100, 50, reservation="pow2").needs == {"output_len"}
    assert contiguous(100, 50, reservation="oracle").needs == {"output_len"}


def test_members_of_a_lockstep_reach_the_end_of_their_reservations_and_no_further() -> None:
    kv = FastContiguous(ContiguousParams("oracle", "first"), KVMemory(512, 1, 512))
    kv.output_len = lambda request: request.max_tokens
    one, rest = request(0, 10, 20), request(1, 400, 82)
    assert admit(kv, one, rest) == [True, True]
    assert kv.turns.join(one, 10 - 7, 11)  # before turn 7
    assert kv.turns.join(rest, 400 - 7, 401)
    assert kv.turns.steps_until_full(7, 1000, 0) == 20
    assert kv.turns.extend(26, 26)
    assert not kv.turns.extend(27, 27)
