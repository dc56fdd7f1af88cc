"""SGLang's rules on small cases worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from servesim.contracts import MISS, Hit, KVMemory, Request, build_params, kv_allocators, schedulers
from servesim.errors import UserError
from servesim.policies.scheduling._prefill_adder import Added, PrefillAdder, max_new
from servesim.policies.scheduling._sglang_order import order
from servesim.workload.content import RunContent
from tests.support.worlds import ToyCost, World, toy_trace
from tests.unit.scheduling.test_batching import requests_of, steps_of


def composition(world: World) -> list[tuple[int, int]]:
    return [(s["prefill_tokens"], s["decode_count"]) for s in steps_of(world)]


def sglang(trace: Any, **world: Any) -> World:
    params = world.pop("params", {})
    return World(trace, scheduler="sglang", scheduler_params=params, cost=ToyCost(1000, 0, 0), **world)


def test_a_prefill_batch_holds_no_decodes() -> None:
    trace = toy_trace([0, 1500], [8, 8], [4, 2])
    assert composition(sglang(trace)) == [(8, 0), (0, 1), (8, 0), (0, 2), (0, 1)]


def test_between_decodes_requests_are_looked_at_once_in_an_interval_and_after_prompts_or_nothing_at_once() -> None:
    """A step takes 1,000 ns. The second request arrives in the first decode and is looked at after the third; the third
    arrives while the second's prompt runs and is looked at after it; the fourth finds an idle server."""
    trace = toy_trace([0, 1500, 4500, 90_000], [8, 8, 8, 8], [9, 9, 2, 2])
    first = [(8, 0), *[(0, 1)] * 3, (8, 0), (8, 0), (0, 3), *[(0, 2)] * 4, *[(0, 1)] * 3]
    world = sglang(trace, params={"scheduler_recv_interval": 3})
    assert composition(world) == [*first, (8, 0), (0, 1)]
    assert requests_of(world)[3]["first_token_ns"] == 91_000


def test_mixed_chunks_take_the_decodes_along_and_out_of_the_chunk() -> None:
    trace = toy_trace([0, 1500], [8, 40], [8, 2])
    world = sglang(trace, params={"enable_mixed_chunk": True, "chunked_prefill_size": 17})
    assert composition(world)[:6] == [(8, 0), (0, 1), (16, 1), (16, 1), (8, 1), (0, 2)]


def test_a_chunked_prompt_goes_on_before_others_enter() -> None:
    trace = toy_trace([0, 0], [40, 10], [2, 2])
    world = sglang(trace, params={"chunked_prefill_size": 32})
    assert composition(world) == [(32, 0), (8 + 10, 0), (0, 2)]


def test_the_overlap_scheduler_runs_each_request_one_step_beyond_its_end() -> None:
    trace = toy_trace([0], [8], [4])
    assert len(steps_of(sglang(trace))) == 4
    assert len(steps_of(sglang(trace, depth=2, asynchronous=True))) == 5


def test_who_generated_least_is_retracted_and_waits_at_the_end() -> None:
    # 100 tokens of memory. Two of 20 + 50 and one of 20 + 6 are let in by a small ratio and run out.
    trace = toy_trace([0, 1500, 3500], [20, 20, 20], [50, 50, 6])
    world = sglang(trace, block_size=1, num_blocks=101, params={"schedule_conservativeness": 0.1})
    requests = requests_of(world)
    assert [requests[i]["num_preemptions"] for i in range(3)] == [0, 1, 0]
    assert requests[1]["finished_ns"] > requests[0]["finished_ns"]


def test_the_ratio_decays_over_600_decodes_and_is_reset_by_retraction_and_by_idling() -> None:
    scheduler: Any = sglang(toy_trace([0], [1], [1])).core().scheduler
    assert scheduler.new_token_ratio == pytest.approx(0.7)
    scheduler._decays += 300
    assert scheduler.new_token_ratio == pytest.approx((0.7 + 0.098) / 2)
    scheduler._decays += 1000
    assert scheduler.new_token_ratio == pytest.approx(0.098)
    kept = [Request(0, "a", 10, 100, 0), Request(1, "b", 10, 299, 0)]
    kept[0].num_tokens += 30
    assert scheduler.ratio_after_retraction(kept) == pytest.approx((30 + 40) / 400)


def adder(free: int, *, chunk: int | None = 64, running: tuple[Request, ...] = (), **options: Any) -> PrefillAdder:
    cls, _ = kv_allocators.resolve("paged")
    left = sum(max_new(request) for request in running)
    return PrefillAdder(cls(None, KVMemory(free + 1, 1, 1 << 20)), running, left, 0.5, 200, chunk, **options)


def test_admission_charges_new_requests_in_full_and_running_ones_by_the_ratio() -> None:
    budget = adder(1000, running=(Request(0, "a", 10, 300, 0),))
    assert budget.remaining == 1000 - 150
    assert budget.add(Request(1, "b", 50, 100, 0), MISS, 0) == (50, False)
    assert budget.remaining == 850 - (50 + 1 + 100)
    assert budget.add(Request(2, "c", 50, 648, 0), MISS, 0) is Added.NO_TOKEN  # 50 + 648 + 1 >= 699


def test_a_prompt_longer_than_what_is_left_of_the_chunk_is_cut_and_charged_without_output() -> None:
    budget = adder(1000)
    assert budget.add(Request(0, "a", 100, 200, 0), MISS, 0) == (64, True)
    assert budget.remaining == 1000 - 64 - 1
    assert budget.state() is Added.OTHER


def test_with_known_ends_requests_enter_that_fit_when_others_have_left() -> None:
    # 30 tokens of output left for a, 20 for b: b ends first and leaves 40 tokens for the last 10 of a.
    a = Request(0, "a", 20, 30, 0)
    b = Request(1, "b", 20, 20, 0)
    # When b ends, 21 + 2 x 20 tokens are taken, and more than two must be left.
    for free, admitted in ((64, True), (63, False)):
        granted = adder(free, chunk=None, running=(a,), ignore_eos=True).add(b, MISS, 0)
        assert (granted == (20, False)) is admitted


def test_shortest_prefill_first_is_refused_without_a_prefix_cache() -> None:
    with pytest.raises(UserError, match="shortest-prefill-first needs a prefix cache, but kv paged has none"):
        sglang(toy_trace([0], [1], [1]), params={"schedule_policy": "shortest-prefill-first"}).core()


def waiter(row: int, runs: list[tuple[int, int]], cap: int = 16) -> Request:
    content = RunContent(row, runs)
    return Request(row, str(row), sum(n for _, n in runs), cap, row, content=content)


def test_depth_first_visits_the_heaviest_branch_first_and_each_nodes_own_last() -> None:
    # Tree: root - A(40) - {AB(60), AC(60)}, root - D(50). Weights A 4 (AB 1, AC 2, one ends in A itself), D 2.
    runs = [[(4, 50), (90, 9)], [(1, 40), (2, 20), (91, 9)], [(1, 40), (3, 20), (92, 9)], [(1, 40), (93, 9)],
            [(1, 40), (3, 20), (94, 9)], [(4, 50), (95, 9)]]  # fmt: skip
    matched = {0: 50, 1: 60, 2: 60, 3: 40, 4: 60, 5: 50}
    waiting = [waiter(i, r) for i, r in enumerate(runs)]
    got = order("dfs-weight", waiting, lambda r: Hit(matched[r.row]))
    assert [r.row for r in got] == [2, 4, 1, 3, 0, 5]


def test_longest_output_hrrn_and_priority_orders() -> None:
    specs = [(10, 5, 1), (100, 9, 0), (20, 7, 1)]
    waiting = [Request(i, str(i), prompt, cap, i, priority) for i, (prompt, cap, priority) in enumerate(specs)]
    assert [r.row for r in order("lof", waiting, lambda r: MISS)] == [1, 2, 0]
    waited = {0: 100, 1: 900, 2: 40}
    assert [r.row for r in order("hrrn", waiting, lambda r: MISS, waited=lambda r: waited[r.row])] == [0, 1, 2]
    assert [r.row for r in order("fcfs", waiting, lambda r: MISS, priority=lambda r: -r.priority)] == [0, 2, 1]
    assert [r.row for r in order("lof", waiting, lambda r: MISS, priority=lambda r: -r.priority)] == [2, 0, 1]


def test_a_waiter_of_much_higher_priority_takes_the_place_of_a_running_one() -> None:
    trace = toy_trace([0, 0, 1500], [8, 8, 8], [20, 20, 2], priorities=[0, 5, 20])
    params = {"enable_priority_scheduling": True}
    requests = requests_of(sglang(trace, max_num_seqs=2, params=params))
    assert [requests[i]["num_preemptions"] for i in range(3)] == [1, 0, 0]
    assert requests[2]["finished_ns"] < requests[0]["finished_ns"]


@pytest.mark.parametrize("mode", ["fast", "reference"])
def test_a_decode_beside_a_prompt_under_way_gets_on_or_is_given_up_where_each_group_of_layers_takes_a_page(
    mode: str,
) -> None:
    """Two prompts of 60 tokens in chunks of 16, 48 tokens more, in 17 pages of four groups: with one page left the
    first needs four for its next token and the second for its next chunk. Neither got one, and nothing was planned any
    more."""
    trace = toy_trace([0, 10_000], [60, 60], [48, 48])
    params = {"chunked_prefill_size": 16, "prefill_decode_interval": 2}
    world = World(
        trace,
        "hybrid",
        18,
        windows=(None, 2, 2, 2),
        scheduler="sglang",
        scheduler_params=params,
        max_model_len=108,
        cost=ToyCost(fixed=1, token=100, context=0),
    )
    rows = world.run(mode, check=True).recorder.requests.array()
    assert len(rows) == 2


@pytest.mark.parametrize(("used", "granted"), [(62, (2, True)), (63, (1, True)), (64, Added.OTHER)])
def test_a_prompt_is_cut_to_what_is_left_of_the_chunk_down_to_one_token(used: int, granted: Any) -> None:
    budget = adder(1000)
    assert budget.add(Request(0, "a", used, 1, 0), MISS, 0) == (used, False)
    assert budget.add(Request(1, "b", 50, 1, 0), MISS, 0) == granted


@pytest.mark.parametrize(("chunk", "tokens"), [(512, 512), (8192, 4096), (-1, 4096), (None, 4096)])
def test_a_step_computes_no_more_than_a_chunk_and_what_prefills_may_take(chunk: int | None, tokens: int) -> None:
    params = build_params(
        "sglang", schedulers.resolve("sglang")[0].Params, {"chunked_prefill_size": chunk, "max_prefill_tokens": 4096}
    )
    assert params.max_num_batched_tokens == tokens
