"""Fast-forwarding changes nothing: every record, block table and free list is that of plain stepping."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import currently_in_test_context, event, given

from servesim.contracts.request import State
from servesim.engine.cluster import Cluster
from servesim.metrics.requests import RequestColumns
from servesim.records.columns import REQUEST_COLUMNS, STEP_COLUMNS
from servesim.records.recorder import Recorder
from tests.support.examples import examples
from tests.support.strategies import drafting_worlds, groups_of_samples, lockstep_worlds, social_worlds, worlds
from tests.support.worlds import World, watch

SUMMED = (
    "k", "gpu_ns", "host_ns", "kv_used_ns", "kv_internal_ns", "preempted", "drafts", "accepted", "bytes_moved",
    "measured_ns", "interpolated_ns", "extrapolated_ns", "roofline_ns",
)  # fmt: skip
OF_FIRST = (
    "replica", "step", "planned_ns", "start_ns", "prefill_tokens", "prefill_pieces", "prefill_context",
    "decode_count", "decode_context", "sampled", "padded_tokens", "kv_used", "kv_internal", "kv_external",
)  # fmt: skip


def by_row(recorder: Recorder) -> list[list[int]]:
    return sorted(recorder.requests.array().tolist())


def assert_steps_agree(fast: Recorder, plain: Recorder) -> None:
    """Each row of the fast run, and the k plain rows it stands for."""
    col = {name: i for i, name in enumerate(STEP_COLUMNS)}
    order = [col["replica"], col["step"]]
    fast_rows = sorted(fast.steps.array().tolist(), key=lambda r: [r[i] for i in order])
    plain_rows = sorted(plain.steps.array().tolist(), key=lambda r: [r[i] for i in order])
    at = 0
    for row in fast_rows:
        part = plain_rows[at : at + row[col["k"]]]
        at += len(part)
        assert [row[col[c]] for c in OF_FIRST] == [part[0][col[c]] for c in OF_FIRST]
        assert row[col["end_ns"]] == part[-1][col["end_ns"]]
        assert row[col["kv_peak"]] == max(r[col["kv_peak"]] for r in part)
        assert [row[col[c]] for c in SUMMED] == [sum(r[col[c]] for r in part) for c in SUMMED]
        for a, b in pairwise(part):
            assert b[col["start_ns"]] == a[col["end_ns"]]
            assert b[col["decode_context"]] == a[col["decode_context"]] + a[col["decode_count"]]
    assert at == len(plain_rows)


@examples(400)
@given(worlds(samples=True))
def test_fast_mode_equals_plain_stepping_in_every_record(world: World) -> None:
    assert_fast_equals_plain(world)


@examples(250)
@given(social_worlds(samples=True))
def test_the_same_where_clients_wait_for_answers_give_up_and_try_again(world: World) -> None:
    assert_fast_equals_plain(world)


@examples(400)
@given(lockstep_worlds())
def test_the_same_where_requests_that_decode_are_counted_together(world: World) -> None:
    assert all(replica.core.lockstep is not None for replica in world.cluster("fast").replicas)
    assert_fast_equals_plain(world)


@examples(300)
@given(drafting_worlds())
def test_the_same_where_drafts_are_verified(world: World) -> None:
    assert_fast_equals_plain(world)


@examples(150)
@given(groups_of_samples())
def test_the_same_where_samples_are_forked_and_swapped_together(world: World) -> None:
    fast, _ = compared(world)
    forked = sum(replica.core.num_forked for replica in fast.replicas)
    table = RequestColumns.of(fast.recorder.requests.array()).sequences
    event(f"forked and leapt: {forked > 0 and bool((fast.recorder.steps.column('k') > 1).any())}")
    event(f"a forked sample gave way: {bool(table['num_preemptions'][table['sample'] > 1].any())}")
    event(f"swapped: {bool(fast.recorder.steps.column('bytes_moved').any())}")


def assert_fast_equals_plain(world: World) -> None:
    fast, plain = compared(world)
    rows = fast.recorder.requests.array()
    event(f"leapt: {len(fast.recorder.steps.array()) < len(plain.recorder.steps.array())}")
    event(f"preempted: {bool(rows[:, REQUEST_COLUMNS.index('num_preemptions')].any())}")
    event(f"aborted: {int((rows[:, REQUEST_COLUMNS.index('state')] == State.ABORTED).sum()) > 0}")
    event(f"several samples: {world.trace.samples is not None}")
    event(f"prefix hits: {bool(rows[:, REQUEST_COLUMNS.index('hit_tokens')].any())}")


def compared(world: World) -> tuple[Cluster, Cluster]:
    """A world run in both modes, all invariants checked and everything they leave behind compared."""
    fast, plain = world.cluster("fast", check=True), world.cluster("reference", check=True)
    fast_seen, plain_seen = watch(fast), watch(plain)
    fast.run()
    plain.run()
    unwatched = world.run("fast")  # checks bring counters up to date, which fast mode does not need
    assert by_row(unwatched.recorder) == by_row(fast.recorder)
    assert unwatched.recorder.steps.array().tolist() == fast.recorder.steps.array().tolist()

    assert by_row(fast.recorder) == by_row(plain.recorder)
    assert fast.recorder.reasons == plain.recorder.reasons
    for a, b in zip(fast.replicas, plain.replicas, strict=True):
        assert a.core.spec_stats == b.core.spec_stats
    for a, b in zip(fast.recorder.itl(), plain.recorder.itl(), strict=True):
        assert a.tolist() == b.tolist()
    assert_steps_agree(fast.recorder, plain.recorder)
    assert sorted(fast.recorder.deliveries.array().tolist()) == sorted(plain.recorder.deliveries.array().tolist())
    if currently_in_test_context():
        event(f"plans skipped: {len(fast_seen) < len(plain_seen)}")
    for key, snapshot in fast_seen.items():
        assert snapshot == plain_seen[key], f"replica, time, step {key}"
    return fast, plain
