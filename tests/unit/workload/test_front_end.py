"""API processes of a front end: prompts first come, first served, in turn with answers; against arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import servesim
from servesim.contracts.request import State
from servesim.cost.host import HostTerms
from servesim.workload.front_end import TOKEN_NS, FrontEnd, FrontTerms
from servesim.workload.trace import Trace
from servesim.workload.workload import Clients, TraceWorkload
from tests.support.examples import examples


def reached(front: FrontEnd) -> list[tuple[int, int]]:
    """(row, when it reaches the queue) of every request."""
    found = []
    while (now := front.next_ns()) is not None:
        if (popped := front.pop()) is not None:
            found.append((popped[0].row, now))
    return found


def burst(*arrivals: int, lengths: list[int] | None = None, output: int = 1) -> TraceWorkload:
    prompt = np.array(lengths or [100 * (i + 1) for i in range(len(arrivals))])
    return TraceWorkload(Trace.from_lengths("burst", np.array(arrivals), prompt, np.full_like(prompt, output)))


TOKENIZING = FrontTerms(in_ns=7, token_ns=10.0)


def test_prompts_that_come_together_wait_for_each_other() -> None:
    assert reached(FrontEnd(burst(0, 0, 0), TOKENIZING)) == [(0, 1007), (1, 3007), (2, 6007)]


def test_a_prompt_that_comes_later_starts_when_it_comes() -> None:
    assert reached(FrontEnd(burst(0, 5000), TOKENIZING)) == [(0, 1007), (1, 7007)]


def test_a_prompt_reaches_the_queue_while_the_next_is_tokenized() -> None:
    terms = FrontTerms(in_ns=400, token_ns=10.0)
    assert reached(FrontEnd(burst(0, 500, 90_000), terms)) == [(0, 1400), (1, 3400), (2, 93_400)]


def test_without_work_only_the_fixed_latency_counts() -> None:
    assert reached(FrontEnd(burst(0, 0, 3), FrontTerms(in_ns=7))) == [(0, 7), (1, 7), (2, 10)]


def test_each_request_takes_its_process_as_long_as_its_prompt_and_its_http() -> None:
    terms = FrontTerms(request_ns=50.0, token_ns=10.0)
    assert reached(FrontEnd(burst(0, 0), terms)) == [(0, 1050), (1, 3100)]


def test_a_short_prompt_overtakes_a_long_one_that_another_process_reads() -> None:
    terms = FrontTerms(token_ns=10.0, processes=2)
    # r0 on the first until 9000, r1 on the second until 1000; r2 comes at 500 and goes to the second.
    front = FrontEnd(burst(0, 0, 500, lengths=[900, 100, 200]), terms)
    assert reached(front) == [(1, 1000), (2, 3000), (0, 9000)]


def test_prompts_on_their_way_are_still_to_come() -> None:
    front = FrontEnd(burst(0, 0), TOKENIZING)
    assert front.next_ns() == 1007
    assert front.remaining() == 2


def test_answers_and_prompts_take_turns_in_a_backlog() -> None:
    # 20 requests/s at once: a prompt takes 60 ms, an answer of 4 tokens is due within 80 ms of its prompt, 10 ms a
    # chunk. From the third on a prompt finds 4 due chunks of the ones before: 100 ms each.
    terms = FrontTerms(request_ns=60e6, chunk_ns=10e6)
    times = [ns for _, ns in reached(FrontEnd(burst(*[0] * 40, output=4), terms))]
    gaps = np.diff(times)
    assert times[0] == 60_000_000
    assert gaps[5:].mean() == pytest.approx(100e6, rel=0.01)


def test_late_chunks_merge_so_that_a_prompt_waits_no_longer_than_it_takes() -> None:
    # The first answer is 1000 chunks of 10 ms, all due within 20 s; a prompt of 1 ms at 30 s finds 5 pieces undone.
    terms = FrontTerms(request_ns=1e6, chunk_ns=10e6 * 10)
    first, second = (ns for _, ns in reached(FrontEnd(burst(0, 1000 * TOKEN_NS, output=1000), terms)))
    assert first == 1_000_000
    assert second == 1000 * TOKEN_NS + 2_000_000


def test_a_process_that_had_time_for_an_answer_owes_nothing() -> None:
    terms = FrontTerms(request_ns=1e6, chunk_ns=1e5)  # 10 ms of chunks over 2 s
    last = 101 * TOKEN_NS
    assert reached(FrontEnd(burst(0, last, output=100), terms))[1] == (1, last + 1_000_000)


def test_longer_chunks_are_less_work() -> None:
    assert FrontTerms(chunk_ns=10.0).answer_ns(7) == 70
    assert FrontTerms(chunk_ns=10.0, stream_interval=3).answer_ns(7) == 30


@examples(60)
@given(
    st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 400), st.integers(1, 50)), min_size=1, max_size=30),
    st.integers(1, 3),
    st.integers(0, 100),
)
def test_no_process_does_more_than_one_prompt_at_a_time(
    rows: list[tuple[int, int, int]], processes: int, chunk: int
) -> None:
    """All prompts are read, none before it could be, in no less time than their work takes; answers at most double
    what a burst takes."""
    sent, lengths, output = (np.array(column) for column in zip(*sorted(rows), strict=True))
    trace = Trace.from_lengths("t", sent, lengths, output)
    terms = FrontTerms(in_ns=5, request_ns=3.0, token_ns=2.0, chunk_ns=float(chunk), processes=processes)
    found = reached(FrontEnd(TraceWorkload(trace), terms))
    assert sorted(row for row, _ in found) == list(range(len(rows)))
    times = [ns for _, ns in found]
    assert times == sorted(times)
    work = 3 + 2 * lengths
    for row, ns in found:
        assert ns >= sent[row] + work[row] + 5
    assert max(times) - 5 >= sent.min() + work.sum() / processes
    assert max(times) - 5 <= sent.max() + 2 * work.sum()


def test_what_depends_on_answers_is_not_asked_for_ahead() -> None:
    trace = Trace.from_lengths("two", [0, 0], [100, 100], [1, 1])
    terms = FrontTerms(in_ns=7, out_ns=20, token_ns=10.0)
    front = FrontEnd(TraceWorkload(trace, clients=Clients(max_concurrency=1)), terms)
    assert not front.open_loop
    assert front.next_ns() == 0
    assert front.pop() is None
    assert front.next_ns() == 1007
    popped = front.pop()
    assert popped is not None
    assert front.next_ns() is None  # until the first has been answered
    popped[0].state = State.FINISHED
    front.on_finish(popped[0], 5000)
    assert front.next_ns() == 5020
    assert front.pop() is None
    assert front.next_ns() == 6027


@pytest.mark.parametrize("more", [{}, {"clients": {"max_concurrency": 12}}, {"engine": {"api_server_count": 3}}])
def test_a_run_behind_a_front_end_is_the_same_step_by_step(more: dict[str, Any]) -> None:
    settings: dict[str, Any] = {
        "trace": "synth:rate=120,output=uniform(1,80)",
        "requests": 120,
        "model": "llama-3.1-8b",
        "gpu": "h200",
        **more,
    }
    fast, steps = (servesim.simulate(**settings, replicas=2, mode=mode) for mode in ("fast", "reference"))
    assert fast.requests.equals(steps.requests)
    assert fast.summary["latency_ms"] == steps.summary["latency_ms"]
    assert fast.steps["k"].sum() == steps.steps["k"].sum() == len(steps.steps) > len(fast.steps)


def test_a_tokenizer_is_that_of_the_models_family() -> None:
    terms = HostTerms(front_in_per_token=1265.0, front_in_per_token_by_model={"gpt-oss": 3400.0})
    assert terms.front("gpt-oss-120b").token_ns == 3400.0
    assert terms.front("qwen3-14b", 4, 8) == FrontTerms(token_ns=1265.0, processes=4, stream_interval=8)


def test_more_api_servers_raise_the_ceiling_of_short_prompts() -> None:
    def rate(**engine: int) -> float:
        result = servesim.simulate(
            trace="synth:prompt=128,output=4", rate=float("inf"), requests=400, model="qwen3-0.6b", gpu="h100",
            engine=engine,
        )  # fmt: skip
        return float(result.summary["throughput"]["request_throughput"])

    one, four = rate(), rate(api_server_count=4)
    terms = HostTerms.load("vllm-0.23-h100").front("qwen3-0.6b")
    most = 1e9 / (terms.prompt_ns(128) + terms.answer_ns(4))
    assert 0.9 * most < one < most
    assert 3 * one < four < 4 * most


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 400)), min_size=1, max_size=30), st.integers(1, 6))
def test_each_prompt_is_read_by_the_process_that_is_done_first(rows: list[tuple[int, int]], processes: int) -> None:
    sent, lengths = (np.array(column) for column in zip(*sorted(rows), strict=True))
    trace = Trace.from_lengths("t", sent, lengths, np.ones_like(lengths))
    terms = FrontTerms(in_ns=5, request_ns=3.0, token_ns=2.0, processes=processes)
    free, expected = [0] * processes, []
    for row, (at, length) in enumerate(zip(sent.tolist(), lengths.tolist(), strict=True)):
        first = free.index(min(free))
        free[first] = max(free[first], at) + 3 + 2 * length
        expected.append((row, free[first] + 5))
    assert sorted(reached(FrontEnd(TraceWorkload(trace), terms))) == expected
