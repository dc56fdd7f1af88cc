"""Clients that wait for answers, give up, try again or queue outside: against arithmetic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from servesim.contracts.request import State
from servesim.errors import UserError
from servesim.records.columns import REQUEST_COLUMNS
from servesim.run.simulate import simulate
from servesim.workload.front_end import FrontEnd, FrontTerms
from servesim.workload.trace import COMPLETION, DISPATCH, Trace
from servesim.workload.workload import Clients, TraceWorkload
from tests.support.examples import examples
from tests.support.strategies import social_worlds
from tests.support.worlds import ToyCost, World, toy_trace

STEP = 100


def columns(world: World, mode: str = "fast") -> dict[str, Any]:
    cluster = world.run(mode, check=True)
    rows = cluster.recorder.requests.array()
    rows = rows[np.argsort(rows[:, 0])]
    got: dict[str, Any] = {name: rows[:, i].tolist() for i, name in enumerate(REQUEST_COLUMNS)}
    return got | {"reasons": cluster.recorder.reasons, "unsent": cluster.workload.unsent}  # type: ignore[attr-defined]


def constant(trace: Trace, clients: Clients, **more: Any) -> World:
    return World(trace, cost=ToyCost(fixed=STEP, token=0, context=0), clients=clients, **more)


def test_two_clients_send_again_as_soon_as_they_have_their_answers() -> None:
    # Steps of 100 ns. r0 (2 tokens) and r1 (3) at 0; r2 (1) when r0 ends at 200, r3 (2) when r1 and r2 end at 300.
    world = constant(toy_trace([0] * 5, [4] * 5, [2, 3, 1, 2, 1]), Clients(max_concurrency=2))
    got = columns(world)
    assert got["arrival_ns"] == [0, 0, 200, 300, 300]
    assert got["finished_ns"] == [200, 300, 300, 500, 400]


def test_a_batch_is_sent_whole_and_the_next_when_all_of_it_has_left() -> None:
    world = constant(toy_trace([0] * 5, [4] * 5, [2, 3, 1, 2, 1]), Clients(max_concurrency=2, batch=True))
    assert columns(world)["arrival_ns"] == [0, 0, 300, 300, 500]


@examples(60)
@given(social_worlds())
def test_a_limit_on_concurrency_is_never_exceeded(world: World) -> None:
    got = columns(world)
    sent, left = np.array(got["arrival_ns"]), np.array(got["finished_ns"])
    for at in sent.tolist():
        inside = int(((sent <= at) & (left > at)).sum())
        assert world.clients.max_concurrency is None or inside <= world.clients.max_concurrency


@pytest.mark.parametrize("concurrency", [1, 3, 8])
def test_littles_law_holds_exactly_in_a_full_closed_loop(concurrency: int) -> None:
    """L = lambda W: with C clients always busy until the queue is empty, the times in system add up to C times the
    duration less what clients stood idle at the end."""
    outputs = [1 + 7 * i % 11 for i in range(40)]
    world = constant(toy_trace([0] * 40, [5] * 40, outputs), Clients(max_concurrency=concurrency))
    got = columns(world)
    in_system = sum(b - a for a, b in zip(got["arrival_ns"], got["finished_ns"], strict=True))
    last = sorted(got["finished_ns"])[-concurrency:]  # each client's last answer
    assert in_system == sum(last)
    assert max(last) == max(got["finished_ns"])


def test_a_later_turn_is_sent_when_its_trigger_has_come_and_its_delay_is_over() -> None:
    # r1 50 ns after r0 was sent; r2 30 ns after r1's end and not before r0's; r3 not before 2000.
    after = {
        1: [(0, DISPATCH, 50)],
        2: [(0, COMPLETION, 0), (1, COMPLETION, 30)],
        3: [(2, COMPLETION, 5)],
    }
    trace = toy_trace([10, 10, 10, 2000], [4] * 4, [5, 1, 1, 1], after=after)
    got = columns(constant(trace, Clients()))
    assert got["arrival_ns"] == [10, 60, 510, 2000]
    assert got["finished_ns"] == [510, 210, 610, 2100]
    # r1 joins at 110 and ends at 210; r0 ends at 510, later than 210 + 30: so r2 is sent at 510.


def test_a_slower_server_is_asked_later() -> None:
    trace = toy_trace([0, 0], [4, 4], [5, 5], after={1: [(0, COMPLETION, 1000)]})
    slow = World(trace, cost=ToyCost(fixed=2 * STEP, token=0, context=0))
    assert columns(constant(trace, Clients()))["arrival_ns"] == [0, 1500]
    assert columns(slow)["arrival_ns"] == [0, 2000]


@examples(60)
@given(social_worlds())
def test_no_request_is_sent_before_what_it_waits_for_whatever_happens(world: World) -> None:
    got = columns(world)
    n = len(world.trace)
    sent: dict[int, int] = {}
    ended: dict[int, int] = {}
    for row, arrival, finished, state in zip(
        got["row"], got["arrival_ns"], got["finished_ns"], got["state"], strict=True
    ):
        sent[row % n] = min(arrival, sent.get(row % n, arrival))
        if state == State.FINISHED:
            ended[row % n] = finished
    for row, at in sent.items():
        for source, trigger, delay, _ in world.trace.after.edges(row) if world.trace.after else ():
            assert at >= (ended if trigger == COMPLETION else sent)[source] + delay
    assert len(sent) + got["unsent"] == n, "some request was neither sent nor counted as unsent"


def test_sessions_take_turns_and_keep_their_own_time() -> None:
    # Two plays at a time. Play b (rows 1, 4) ends at 900; c, recorded at 50, begins then, its second row 40 later.
    labels = {"session": ("a", "b", "c", "c", "b")}
    trace = toy_trace([0, 0, 50, 90, 600], [4] * 5, [20, 1, 1, 1, 3], labels=labels)
    got = columns(constant(trace, Clients(max_sessions=2)))
    assert got["arrival_ns"] == [0, 0, 900, 940, 600]


def test_who_gives_up_is_counted_and_frees_what_it_held() -> None:
    # r0 would take 1000 ns; its client leaves at 450. r1 needs the only slot.
    trace = toy_trace([0, 0], [4, 4], [10, 1], cancel=[450, -1])
    for mode in ("fast", "reference"):
        got = columns(constant(trace, Clients(), max_num_seqs=1), mode)
        assert got["state"] == [State.ABORTED, State.FINISHED]
        assert got["finished_ns"] == [450, 600]  # the step from 400 to 500 ends, and is r1's next chance
        assert got["output_len"] == [4, 1]
        assert got["reasons"][0] == "cancelled by the client"


def test_an_answer_at_the_very_end_of_patience_is_an_answer() -> None:
    got = columns(constant(toy_trace([0], [4], [3], cancel=[300]), Clients()))
    assert got["state"] == [State.FINISHED]


def test_patience_for_the_first_token_ends_with_the_first_token() -> None:
    # r1 waits for the slot until 500; r0 has its first token at 100.
    clients = Clients(ttft_timeout_ns=150)
    got = columns(constant(toy_trace([0, 0], [4, 4], [5, 5]), clients, max_num_seqs=1))
    assert got["state"] == [State.FINISHED, State.ABORTED]
    assert got["reasons"][1] == "no first token within the client's timeout"


def test_clients_that_all_give_up_before_their_first_token_are_no_livelock() -> None:
    # Prompts of 6 steps, clients that wait for 5 of them: far more tokens are computed than all here could need.
    n = 3000
    trace = toy_trace([6 * STEP * i for i in range(n)], [600] * n, [2] * n)
    got = columns(constant(trace, Clients(ttft_timeout_ns=5 * STEP), max_num_batched_tokens=100))
    assert set(got["state"]) == {State.ABORTED}


def test_a_timeout_is_retried_as_often_as_stated_and_each_attempt_counts() -> None:
    # 10 tokens never fit into 350 ns: sent at 0, 350 + 50 and 750 + 50; r1 follows r0 and is never sent.
    trace = toy_trace([0, 0], [4, 4], [10, 1], after={1: [(0, COMPLETION, 0)]})
    got = columns(constant(trace, Clients(timeout_ns=350, retries=2, retry_ns=50)))
    assert got["row"] == [0, 2, 4]
    assert got["arrival_ns"] == [0, 400, 800]
    assert got["state"] == [State.ABORTED] * 3
    assert got["unsent"] == 1


def test_a_full_queue_turns_away_and_the_retry_finds_room() -> None:
    trace = toy_trace([0, 10, 20], [4] * 3, [1, 1, 1])
    got = columns(constant(trace, Clients(retries=1, retry_ns=200), max_num_seqs=1, max_queued=1))
    assert got["row"] == [0, 1, 2, 5]
    assert got["state"] == [State.FINISHED, State.FINISHED, State.REJECTED, State.FINISHED]
    assert got["arrival_ns"] == [0, 10, 20, 220]
    assert got["reasons"][2] == "queue full: 1 requests wait"


def test_the_front_end_delays_what_clients_hear_and_when_they_are_heard() -> None:
    trace = toy_trace([0, 0], [4, 4], [5, 5], after={1: [(0, COMPLETION, 0)]}, cancel=[100, -1])
    front = FrontEnd(TraceWorkload(trace), FrontTerms(in_ns=7, out_ns=20))
    assert front.next_ns() == 7
    request, _ = front.pop()
    assert request.arrival_ns == 0
    assert request.deadlines[0].ns == 107
    request.state = State.FINISHED
    front.on_finish(request, 500)
    assert front.next_ns() == 500 + 20 + 7


def test_a_client_loses_patience_while_its_request_waits_for_the_api_process() -> None:
    trace = toy_trace([0, 0], [4, 4], [5, 5], cancel=[100, 100])
    front = FrontEnd(TraceWorkload(trace), FrontTerms(in_ns=7, request_ns=80))
    while front.next_ns() != 160 + 7:  # both are done after 2 x 80 ns
        assert front.pop() is None
    assert [front.pop()[0].deadlines[0].ns for _ in range(2)] == [107, 107]


def test_a_stop_at_the_very_cap_is_a_stop() -> None:
    trace = toy_trace([0, 0], [4, 4], [3, 3])
    both = Trace(
        "t", trace.arrival_ns, trace.prompt_len, trace.output_len, trace.max_tokens,
        np.array([True, False]), trace.priority,
    )  # fmt: skip
    assert columns(constant(both, Clients()))["reasons"] == {0: "stop", 1: "length"}


def test_requests_that_wait_in_a_ring_are_refused() -> None:
    with pytest.raises(UserError, match="row 0: waits for itself in a cycle"):
        toy_trace([0, 0], [1, 1], [1, 1], after={0: [(1, COMPLETION, 0)], 1: [(0, COMPLETION, 0)]})


MOST = (1 << 62) - 1


@pytest.mark.parametrize(
    ("arrivals", "after"),
    [
        ([0, 0], {1: [(0, COMPLETION, MOST)]}),
        ([0, MOST], {1: [(0, COMPLETION, MOST)]}),
        ([0, 0, 0], {1: [(0, COMPLETION, MOST // 2)], 2: [(1, COMPLETION, MOST // 2)]}),
        ([0, 0], {0: [(1, COMPLETION, MOST)]}),
    ],
)
def test_pauses_of_longer_than_times_reach_are_refused(arrivals: list[int], after: Any) -> None:
    with pytest.raises(UserError, match=r"waits for more than 140 years"):
        toy_trace(arrivals, [1] * len(arrivals), [1] * len(arrivals), after=after)


def test_pauses_side_by_side_do_not_add_up() -> None:
    long = {row: [(0, COMPLETION, MOST // 2)] for row in (1, 2, 3)}
    assert len(toy_trace([0] * 4, [1] * 4, [1] * 4, after=long)) == 4


def test_taking_rows_keeps_what_they_say_of_each_other() -> None:
    runs = [[(7, 4)], [(8, 4)], [(7, 4), (-1, 2)], [(8, 4), (-2, 1), (9, 3)]]
    after = {2: [(0, COMPLETION, 5)], 3: [(1, COMPLETION, 6)]}
    trace = toy_trace([0] * 4, [4, 4, 6, 8], [2, 1, 1, 1], runs=runs, after=after)
    taken = trace.take(np.array([1, 2, 3]))
    assert taken.content is not None
    assert taken.after is not None
    assert taken.content.runs(2) == [(8, 4), (-1, 1), (9, 3)]
    said = taken.content.runs(1)[1][0]
    assert said >= 0, "the output of a row left behind is nobody's output any more"
    assert said not in {7, 8, 9}
    assert [taken.after.edges(row) for row in range(3)] == [[], [], [(0, COMPLETION, 6, 0)]]
    assert trace.plays().tolist() == [0, 1, 0, 1]


def test_offline_throughput_and_a_single_batch_are_settings_of_a_run(tmp_path: Path) -> None:
    settings = {"trace": "synth:prompt=64,output=8", "requests": 6, "model": "llama-3.1-8b", "gpu": "h100"}
    offline = simulate(settings, rate=float("inf"), out=tmp_path / "offline")
    assert offline.requests["arrival_ns"].tolist() == [0] * 6
    batch = simulate(settings, rate=float("inf"), clients={"max_concurrency": 3, "batch": True})
    assert batch.requests["arrival_ns"].nunique() == 2
    again = simulate(tmp_path / "offline" / "scenario.yaml")
    assert again.summary == offline.summary
    loop = simulate(settings, rate=float("inf"), clients={"max_concurrency": 2}, mode="reference")
    assert loop.summary["requests"]["max_concurrency"] == 2
    with pytest.raises(UserError, match="did you mean"):
        simulate(settings, clients={"max_concurency": 2})


def test_clients_begin_one_after_the_other_over_the_ramp() -> None:
    world = constant(toy_trace([0] * 6, [4] * 6, [1] * 6), Clients(max_concurrency=4, ramp_up_ns=1000))
    # The first client sends again at each end until the second begins at 250, whose request waits for a step until 300.
    assert columns(world)["arrival_ns"] == [0, 100, 200, 250, 300, 400]


def test_clients_take_their_mean_time_to_turn_around_whatever_the_order_of_ends() -> None:
    count, mean = 400, 5_000
    clients = Clients(max_concurrency=1, turn_ns=mean, seed=3)
    got = columns(constant(toy_trace([0] * count, [4] * count, [1] * count), clients))
    turns = np.array(got["arrival_ns"][1:]) - np.array(got["finished_ns"][:-1])
    assert turns.min() >= 0
    assert turns.mean() == pytest.approx(mean, rel=0.15)
    assert turns.std() == pytest.approx(mean, rel=0.2)
    alike = columns(constant(toy_trace([0] * 9, [4] * 9, [1] * 9), clients))
    assert alike["arrival_ns"] == got["arrival_ns"][:9]


def test_a_batch_is_followed_when_its_clients_have_turned_around() -> None:
    clients = Clients(max_concurrency=2, batch=True, turn_ns=1000)
    got = columns(constant(toy_trace([0] * 4, [4] * 4, [2, 3, 1, 2]), clients))
    assert got["arrival_ns"][:2] == [0, 0]
    assert min(got["arrival_ns"][2:]) > 300
    assert got["arrival_ns"][2] < got["arrival_ns"][3]
