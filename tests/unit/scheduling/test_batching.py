"""Static, selective, continuous and stall-free batching, step by step on a few requests."""

from __future__ import annotations

import pytest

from servesim.contracts import State
from servesim.errors import UserError
from servesim.records.columns import REQUEST_COLUMNS
from tests.property.test_fast_equals_reference import compared
from tests.support.worlds import ToyCost, World, toy_trace


def steps_of(world: World) -> list[dict[str, int]]:
    """Composition of each step: rows by column name."""
    table = world.run("reference", check=True).recorder.steps
    columns = ("prefill_tokens", "decode_count", "sampled", "padded_tokens", "preempted", "bytes_moved")
    rows = zip(*(table.column(c).tolist() for c in columns), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def requests_of(world: World) -> dict[int, dict[str, int]]:
    rows = world.run(check=True).recorder.requests.array().tolist()
    return {row[0]: dict(zip(REQUEST_COLUMNS, row, strict=True)) for row in rows}


# A and B run, C and D wait; two rows at most; every step takes one nanosecond.
FOUR = toy_trace([0, 0, 0, 0], [1, 1, 1, 1], [500, 10, 90, 5])
ONE_NS = ToyCost(fixed=1, token=0, context=0)


def test_in_a_static_batch_the_others_wait_for_the_longest() -> None:
    world = World(FOUR, scheduler="static", scheduler_params={"max_batch_size": 2}, max_num_seqs=2, cost=ONE_NS)
    requests = requests_of(world)
    assert [requests[i]["scheduled_ns"] for i in range(4)] == [0, 0, 500, 500]
    assert [requests[i]["finished_ns"] for i in range(4)] == [500, 500, 590, 590]
    padding = [s["padded_tokens"] for s in steps_of(world)]
    assert padding == [0] * 10 + [1] * 490 + [0] * 5 + [1] * 85


@pytest.mark.parametrize("scheduler", ["selective", "continuous", "sarathi", "vllm"])
def test_with_iteration_level_scheduling_who_waits_joins_when_another_leaves(scheduler: str) -> None:
    requests = requests_of(World(FOUR, scheduler=scheduler, max_num_seqs=2, cost=ONE_NS))
    late = 2 if scheduler == "continuous" else 0  # its prefills are steps of their own, and delay A
    assert [requests[i]["scheduled_ns"] for i in range(4)] == [0, 0, 10, 100]
    assert [requests[i]["finished_ns"] for i in range(4)] == [500 + late, 10, 100, 105]


def test_static_rows_hold_memory_for_the_longest_prompt_and_output() -> None:
    # Four rows of (20 + 30) tokens are 4 x 4 blocks of 16; with 15 blocks only three fit.
    trace = toy_trace([0] * 4, [20, 4, 4, 4], [2, 30, 2, 2])
    for blocks, rows in ((17, 4), (16, 3)):
        first = steps_of(World(trace, scheduler="static", num_blocks=blocks))[0]
        assert first["sampled"] == rows


def test_each_static_row_reserves_the_longest_prompt_plus_the_longest_output() -> None:
    """A row is 20 + 30 tokens, 4 blocks of 16, whichever request has the longest prompt or output."""
    for prompts, outputs in (([20, 4], [2, 30]), ([4, 20], [30, 2])):
        table = World(toy_trace([0, 0], prompts, outputs), scheduler="static").run("reference").recorder.steps
        assert table.column("kv_used")[0] + table.column("kv_internal")[0] == 2 * 4 * 16


def test_orca_mixes_whole_prompts_with_decodes_and_reserves_slots() -> None:
    trace = toy_trace([0, 0, 0], [10, 20, 5], [3, 6, 2])
    world = World(trace, scheduler="selective", scheduler_params={"n_slots": 40}, block_size=1)
    # 13 + 26 slots; the third needs 7 and gets them when the first has gone.
    steps = steps_of(world)
    assert [(s["prefill_tokens"], s["decode_count"]) for s in steps] == [
        (30, 0), (0, 2), (0, 2), (5, 1), (0, 2), (0, 1),
    ]  # fmt: skip


CHUNKED = {"max_num_tokens": 40, "enable_chunked_context": True}


def test_chunked_context_takes_decodes_first_and_whole_blocks_of_the_prompt_that_does_not_fit() -> None:
    """TensorRT-LLM with 40 tokens an iteration, blocks of 16: the first prompt leaves 20, one block of the second, and
    4 are too few for the third; beside a decode, 39 are two blocks of the second and all of the third."""
    trace = toy_trace([0, 0, 0], [20, 90, 5], [4, 2, 2])
    steps = steps_of(World(trace, scheduler="selective", scheduler_params=CHUNKED))
    assert [(s["prefill_tokens"], s["decode_count"], s["sampled"]) for s in steps] == [
        (20 + 16, 0, 1), (32 + 5, 1, 2), (32, 2, 2), (10, 1, 2), (0, 1, 1),
    ]  # fmt: skip


def test_without_it_a_prompt_longer_than_the_limit_runs_whole() -> None:
    trace = toy_trace([0, 0], [90, 5], [2, 2])
    whole = {"max_num_tokens": 40}
    steps = steps_of(World(trace, scheduler="selective", scheduler_params=whole))
    assert [s["prefill_tokens"] for s in steps] == [90, 5, 0]


def test_a_prompt_in_pieces_holds_the_memory_of_its_end_from_the_first() -> None:
    """90 + 10 tokens are 7 blocks of 16; the second request needs 2 and waits where only 8 are free in total."""
    trace = toy_trace([0, 0], [90, 20], [10, 3])
    for blocks, first in ((10, 0), (9, None)):
        requests = requests_of(World(trace, scheduler="selective", scheduler_params=CHUNKED, num_blocks=blocks))
        waits = requests[1]["scheduled_ns"] >= requests[0]["finished_ns"]
        assert waits is (first is None)


def test_chunks_need_a_limit_of_at_least_a_block() -> None:
    trace = toy_trace([0], [90], [2])
    with pytest.raises(UserError, match="enable_chunked_context has no effect without max_num_tokens"):
        World(trace, scheduler="selective", scheduler_params={"enable_chunked_context": True}).run()
    with pytest.raises(UserError, match=r"every 16 tokens\), but max_num_tokens is 8"):
        World(trace, scheduler="selective", scheduler_params={**CHUNKED, "max_num_tokens": 8}).run()


def test_orca_rejects_what_its_slots_never_hold() -> None:
    trace = toy_trace([0, 0], [50, 5], [3, 2])
    requests = requests_of(World(trace, scheduler="selective", scheduler_params={"n_slots": 40}))
    assert [requests[i]["state"] for i in (0, 1)] == [State.REJECTED, State.FINISHED]


def test_v0_prefills_run_alone_and_stall_every_decode() -> None:
    trace = toy_trace([0, 2500], [8, 8], [6, 2])
    steps = steps_of(World(trace, scheduler="continuous", cost=ToyCost(1000, 0, 0)))
    assert [(s["prefill_tokens"], s["decode_count"]) for s in steps] == [
        (8, 0), (0, 1), (0, 1), (8, 0), (0, 2), (0, 1), (0, 1),
    ]  # fmt: skip


def test_v0_admits_only_above_the_watermark_and_rejects_what_never_fits() -> None:
    def admitted(prompt: int) -> str:
        params = {"watermark": 0.1}  # one block of ten
        world = World(toy_trace([0], [prompt], [1]), scheduler="continuous", num_blocks=11, scheduler_params=params)
        return world.run(check=True).recorder.reasons[0]

    assert admitted(9 * 16) == "length"
    assert "watermark" in admitted(9 * 16 + 1)


@pytest.mark.parametrize(("mode", "recomputed", "moved"), [("recompute", True, False), ("swap", False, True)])
def test_v0_short_of_blocks_takes_the_last_comer_off(mode: str, recomputed: bool, moved: bool) -> None:
    trace = toy_trace([0, 0], [16, 16], [60, 60])
    world = World(
        trace, scheduler="continuous", num_blocks=8, host_blocks=8, scheduler_params={"preemption_mode": mode}
    )
    requests, steps = requests_of(world), steps_of(world)
    assert [requests[i]["num_preemptions"] for i in (0, 1)] == [0, 1]
    assert bool(requests[1]["recomputed_tokens"]) is recomputed
    assert any(s["bytes_moved"] for s in steps) is moved


def test_v0_who_was_swapped_out_comes_back_before_anyone_new() -> None:
    trace = toy_trace([0, 0, 1], [16, 16, 16], [60, 60, 1])
    params = {"preemption_mode": "swap"}
    world = World(trace, scheduler="continuous", num_blocks=8, host_blocks=8, max_num_seqs=2, scheduler_params=params)
    steps = steps_of(world)
    out, back = (i for i, s in enumerate(steps) if s["bytes_moved"])
    assert out < back < max(i for i, s in enumerate(steps) if s["prefill_tokens"])
    assert requests_of(world)[1]["num_preemptions"] == 1


def test_v0_without_host_memory_falls_back_to_recomputation() -> None:
    trace = toy_trace([0, 0], [16, 16], [60, 60])
    params = {"preemption_mode": "swap"}
    requests = requests_of(World(trace, scheduler="continuous", num_blocks=8, scheduler_params=params))
    assert requests[1]["recomputed_tokens"] > 0


def test_sarathi_decodes_first_and_fills_the_chunk_with_prefills() -> None:
    trace = toy_trace([0, 1, 1], [8, 100, 30], [20, 2, 2])
    world = World(trace, scheduler="sarathi", scheduler_params={"chunk_size": 32})
    steps = steps_of(world)
    # 100 tokens beside one decode in pieces of 31; the last of 7 leaves room for 24 of the next prompt.
    assert [(s["prefill_tokens"], s["decode_count"]) for s in steps[:7]] == [
        (8, 0), (31, 1), (31, 1), (31, 1), (7 + 24, 1), (6, 2), (0, 2),
    ]  # fmt: skip


def test_sarathi_shrinks_dynamic_chunks_as_the_prompt_progresses() -> None:
    params = {
        "enable_dynamic_chunking_schedule": True,
        "low_chunk_size": 32,
        "high_chunk_size": 96,
        "chunk_schedule_max_tokens": 384,
        "chunk_schedule_stages": 3,
    }
    world = World(toy_trace([0], [384], [1]), scheduler="sarathi", scheduler_params=params)
    # Stages of 128 tokens: 96 from 0 and from 96, 64 from 192, 32 from 256 on.
    assert [s["prefill_tokens"] for s in steps_of(world)] == [96, 96, 64, 32, 32, 32, 32]


def test_sarathi_admits_only_whole_prompts_into_memory() -> None:
    trace = toy_trace([0, 0], [64, 64], [4, 4])
    world = World(trace, scheduler="sarathi", scheduler_params={"chunk_size": 16}, num_blocks=8)
    requests = requests_of(world)
    assert requests[1]["scheduled_ns"] == requests[0]["finished_ns"]
    assert requests[0]["num_preemptions"] == 0


def test_without_a_kv_cache_every_step_computes_everything_again() -> None:
    steps = steps_of(World(toy_trace([0], [40], [8]), scheduler="no-cache"))
    assert [s["prefill_tokens"] for s in steps] == list(range(40, 48))


def test_a_request_swapped_out_in_flight_comes_back_once_its_token_is_known() -> None:
    """Three stages: request 1 gives way while its last step is in the pipeline, and there is room for it at once."""
    trace = toy_trace([787, 1948], [25, 4], [18, 21])
    params = {"preemption_mode": "swap"}
    cost = ToyCost(1000, 0, 1)
    fast, _ = compared(World(trace, "paged", 6, scheduler="continuous", scheduler_params=params, depth=3, cost=cost))
    preemptions, tokens = (fast.recorder.requests.column(name) for name in ("num_preemptions", "output_len"))
    assert preemptions[0] == 0 < preemptions[1]
    assert tokens.tolist() == [18, 21]


def test_a_static_batch_begins_with_fewer_rows_where_groups_of_layers_take_more_than_free_tokens_say() -> None:
    """Two rows of 37 + 21 tokens are 8 blocks, of 11 that are free; in three groups one row alone takes 12."""
    trace = toy_trace([353, 1798, 2144], [7, 37, 2], [23, 4, 21])
    world = World(trace, "hybrid", 12, windows=(None, 20, 33), scheduler="static", max_num_seqs=3, max_model_len=120)
    fast, _ = compared(world)
    assert sorted(fast.recorder.requests.column("output_len").tolist()) == [4, 21, 23]


def test_swapping_in_takes_what_windows_still_reach_into_alone() -> None:
    """80 tokens in three groups are 15 blocks, of which 6 lie before the two windows of 20; at 96 there are 18 and 8,
    and 17 blocks in all."""
    trace = toy_trace([581, 865], [53, 5], [45, 45])
    shape = {"windows": (None, 20, 20), "host_blocks": 1000, "max_model_len": 120, "max_num_batched_tokens": 16}
    fast, _ = compared(World(trace, "hybrid", 18, scheduler="fastserve", max_num_seqs=1, **shape))
    assert fast.recorder.requests.column("output_len").tolist() == [45, 45]
    assert fast.recorder.steps.column("bytes_moved").sum() > 0


def test_sarathi_keeps_running_requests_in_order_of_arrival_where_samples_begin_to_decode() -> None:
    trace = toy_trace([0, 0], [14, 22], [2, 13], samples={0: [7], 1: []})
    compared(
        World(trace, "paged", 14, scheduler="sarathi", scheduler_params={"chunk_size": 16}, cost=ToyCost(1, 0, 13))
    )


WAITING = {"max_num_tokens": 100, "batch_wait_timeout_iters": 3, "batch_wait_max_tokens_ratio": 0.5}
"""TensorRT-LLM's batch waiting: at most 3 steps, or until a step has 50 tokens."""


@pytest.mark.parametrize(
    ("prompts", "iters", "ratio", "found"),
    [
        ([10, 20], 3, 0.5, [(10, 0), (0, 1), (0, 1), (0, 1), (20, 1)]),  # 1 + 20 < 50: three steps later
        ([10, 49], 3, 0.5, [(10, 0), (49, 1)]),  # 1 + 49 tokens are enough
        ([10, 20], 0, 0.5, [(10, 0), (20, 1)]),
        ([10, 20], 3, 0.0, [(10, 0), (20, 1)]),  # no tokens at all are enough
    ],
)
def test_prompts_are_held_back_until_the_step_is_full_or_the_iterations_are_over(
    prompts: list[int], iters: int, ratio: float, found: list[tuple[int, int]]
) -> None:
    params = {"max_num_tokens": 100, "batch_wait_timeout_iters": iters, "batch_wait_max_tokens_ratio": ratio}
    world = World(toy_trace([0, 1], prompts, [20, 4]), scheduler="selective", scheduler_params=params)
    assert [(s["prefill_tokens"], s["decode_count"]) for s in steps_of(world)][: len(found)] == found


def test_a_prompt_is_held_back_only_beside_decodes() -> None:
    steps = steps_of(World(toy_trace([0], [10], [3]), scheduler="selective", scheduler_params=WAITING))
    assert [(s["prefill_tokens"], s["decode_count"]) for s in steps] == [(10, 0), (0, 1), (0, 1)]


def test_waits_are_the_same_step_by_step_and_in_leaps() -> None:
    arrivals, prompts, outputs = [0, 3, 9, 40, 41, 300], [10, 30, 7, 60, 8, 5], [400, 90, 5, 60, 8, 30]
    for chunked in (False, True):
        params = {**WAITING, "enable_chunked_context": chunked}
        compared(World(toy_trace(arrivals, prompts, outputs), scheduler="selective", scheduler_params=params))
