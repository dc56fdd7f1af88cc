"""API processes of a front end: a loop that requests and answers share, and a tokenizer; against arithmetic."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import servesim
from servesim.contracts.request import State
from servesim.cost.host import HostTerms
from servesim.workload.front_end import TOKEN_NS, FrontEnd, FrontTerms
from servesim.workload.samples import FURTHER
from servesim.workload.trace import Samples, Trace
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


def test_prompts_that_come_together_are_tokenized_in_order() -> None:
    assert reached(FrontEnd(burst(0, 0, 0), TOKENIZING)) == [(0, 1007), (1, 3007), (2, 6007)]


def test_a_prompt_that_comes_later_starts_when_it_comes() -> None:
    assert reached(FrontEnd(burst(0, 5000), TOKENIZING)) == [(0, 1007), (1, 7007)]


def test_a_prompt_reaches_the_queue_while_the_next_is_tokenized() -> None:
    terms = FrontTerms(in_ns=400, token_ns=10.0)
    assert reached(FrontEnd(burst(0, 500, 90_000), terms)) == [(0, 1400), (1, 3400), (2, 93_400)]


def test_without_work_only_the_fixed_latency_counts() -> None:
    assert reached(FrontEnd(burst(0, 0, 3), FrontTerms(in_ns=7))) == [(0, 7), (1, 7), (2, 10)]


def test_requests_that_come_together_share_the_loop_and_are_then_tokenized() -> None:
    terms = FrontTerms(request_ns=50.0, token_ns=10.0)  # of 100 and 200 tokens; both leave the loop at 100
    assert reached(FrontEnd(burst(0, 0), terms)) == [(0, 1100), (1, 3100)]


def test_a_burst_reaches_the_queue_when_its_last_request_does() -> None:
    assert reached(FrontEnd(burst(*[0] * 40), FrontTerms(request_ns=100.0))) == [(row, 4000) for row in range(40)]


def test_a_request_that_comes_later_slows_those_in_the_loop_down() -> None:
    # Alone until 30, then half of the loop each: the first has 20 left, until 70; the second 30 more, until 100.
    assert reached(FrontEnd(burst(0, 30), FrontTerms(request_ns=50.0))) == [(0, 70), (1, 100)]


def test_a_process_reads_a_request_while_its_tokenizer_works() -> None:
    terms = FrontTerms(in_ns=5, request_ns=50.0, token_ns=10.0)
    assert reached(FrontEnd(burst(0, 500, lengths=[100, 1]), terms)) == [(0, 1055), (1, 1065)]


def test_a_short_prompt_overtakes_a_long_one_that_another_process_tokenizes() -> None:
    terms = FrontTerms(request_ns=100.0, token_ns=10.0, processes=2)
    # r0 on the first, tokenized from 100 to 9100, r1 on the second from 100 to 1100; r2 comes at 500 and finds no
    # request in either loop: it goes to the first.
    front = FrontEnd(burst(0, 0, 500, lengths=[900, 100, 200]), terms)
    assert reached(front) == [(1, 1100), (0, 9100), (2, 11_100)]


def test_prompts_on_their_way_are_still_to_come() -> None:
    front = FrontEnd(burst(0, 0), TOKENIZING)
    assert front.next_ns() == 1007
    assert front.remaining() == 2


def test_answers_take_half_of_a_loop_that_has_requests() -> None:
    # The first request is read at 60 ms; its answer of 4 tokens, 10 ms a chunk, falls due at 80, 100, 120 and 140 ms.
    # The second comes at 130 ms, when 3 chunks were due and done but for the last (until 130); the fourth is not seen.
    # The third comes at 150 ms, when the fourth, due at 140, is left: 10 ms more, half of the loop until it is done.
    terms = FrontTerms(request_ns=60e6, chunk_ns=10e6)
    sent = burst(0, 130_000_000, 150_000_000, output=4)
    first, second, third = (ns / 1e6 for _, ns in reached(FrontEnd(sent, terms)))
    assert (first, second, third) == (60, 240, 260)


def test_late_chunks_merge_so_that_a_prompt_waits_no_longer_than_it_takes() -> None:
    # The first answer is 1000 chunks of 100 ms, all due within 20 s; a prompt of 1 ms at 20 s finds most undone.
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
def test_no_process_does_more_than_its_time_allows(
    rows: list[tuple[int, int, int]], processes: int, chunk: int
) -> None:
    """All prompts are read, none before it could be, in no less time than their work takes; answers at most double
    what the loop takes for a burst."""
    sent, lengths, output = (np.array(column) for column in zip(*sorted(rows), strict=True))
    trace = Trace.from_lengths("t", sent, lengths, output)
    terms = FrontTerms(in_ns=5, request_ns=3.0, token_ns=2.0, chunk_ns=float(chunk), processes=processes)
    found = reached(FrontEnd(TraceWorkload(trace), terms))
    assert sorted(row for row, _ in found) == list(range(len(rows)))
    times = [ns for _, ns in found]
    assert times == sorted(times)
    for row, ns in found:
        assert ns >= sent[row] + 3 + 2 * lengths[row] + 5
    assert max(times) - 5 >= sent.min() + max(3 * len(rows), 2 * lengths.sum()) / processes
    assert max(times) - 5 <= sent.max() + (2 * 3 + 1) * len(rows) + 2 * lengths.sum()


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


@pytest.mark.parametrize("processes", [1, 2])
def test_further_samples_come_with_the_first_and_take_nothing_of_the_loop_from_others(processes: int) -> None:
    samples = Samples.of(np.array([3, 0, 0]), np.array([4, 4, 4]))
    trace = replace(Trace.from_lengths("samples", [0, 250, 350], [1, 1, 1], [4, 4, 4]), samples=samples)
    terms = FrontTerms(request_ns=100.0, processes=processes)
    found = reached(FrontEnd(TraceWorkload(trace), terms))
    further = [(FURTHER, 100), (FURTHER + 1, 100), (FURTHER + 2, 100)]  # the further samples of row 0
    assert found == [(0, 100), *further, (1, 350), (2, 450)]


def test_an_idle_process_does_the_answers_that_are_due_one_after_the_other() -> None:
    # Answers of one token: 10 ms of work each, due 20 ms after their prompts, at 28 ms (one at 21 ms). At 40 ms one is
    # done; of eight 68 ms are left, so a request of 1 ms takes two.
    terms = FrontTerms(chunk_ns=10e6, request_ns=1e6)
    one, many = (reached(FrontEnd(burst(*[0] * n, 40_000_000, lengths=[1] * (n + 1)), terms))[-1] for n in (1, 8))
    assert one == (1, 41_000_000)
    assert many == (8, 42_000_000)


def test_more_api_servers_raise_the_ceiling_of_short_prompts() -> None:
    def rate(**engine: int) -> float:
        result = servesim.simulate(
            trace="synth:prompt=128,output=4", rate=float("inf"), requests=400, model="qwen3-0.6b", gpu="h100",
            engine=engine,
        )  # fmt: skip
        return float(result.summary["throughput"]["request_throughput"])

    one, four = rate(), rate(api_server_count=4)
    terms = HostTerms.load("vllm-0.23-h100").front("qwen3-0.6b")
    most = 1e9 / (terms.request_ns + terms.answer_ns(4))
    assert 0.9 * most < one < most
    assert 3 * one < four < 4 * most


def test_a_program_that_calls_the_engine_itself_has_no_api_server() -> None:
    """Of 3,000 prompts at once the first is admitted at once, where an API process reads all of them for 16 s."""

    def first_ms(count: int) -> float:
        result = servesim.simulate(
            trace="synth:prompt=128,output=4", rate=float("inf"), requests=3000, model="qwen3-0.6b", gpu="h100",
            engine={"api_server_count": count},
        )  # fmt: skip
        return float(result.requests["scheduled_ns"].min()) / 1e6

    assert first_ms(0) < 1
    assert first_ms(1) > 3000 * HostTerms.load("vllm-0.23-h100").front_per_request / 1e6 - 1


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 400)), min_size=1, max_size=30), st.integers(1, 6))
def test_requests_share_their_loops_as_exact_arithmetic_says(rows: list[tuple[int, int]], processes: int) -> None:
    """Against fractions: each loop gives each of its n requests 1/n of its time; prompts are tokenized in order."""
    sent, lengths = (np.array(column) for column in zip(*sorted(rows), strict=True))
    trace = Trace.from_lengths("t", sent, lengths, np.ones_like(lengths))
    terms = FrontTerms(in_ns=5, request_ns=30.0, token_ns=2.0, processes=processes)
    loops: list[list[tuple[int, Fraction]]] = [[] for _ in range(processes)]  # (row, work left), by process
    left, now = [Fraction(0)] * processes, Fraction(0)  # when each tokenizer is done
    expected: dict[int, Fraction] = {}
    for row, at in [*enumerate(sent.tolist()), (-1, 10**9)]:
        for which, loop in enumerate(loops):
            time = now
            while loop and time + loop[0][1] * len(loop) <= at:
                work = loop[0][1]
                time += work * len(loop)
                done, _ = loop.pop(0)
                loop[:] = [(other, rest - work) for other, rest in loop]
                left[which] = max(left[which], time) + 2 * int(lengths[done])
                expected[done] = left[which] + 5
            loop[:] = [(other, rest - (at - time) / len(loop)) for other, rest in loop]
        now = Fraction(at)
        if row >= 0:
            min(loops, key=len).append((row, Fraction(30)))
    found = dict(reached(FrontEnd(TraceWorkload(trace), terms)))
    assert found.keys() == expected.keys()
    for row, ns in found.items():
        assert abs(ns - expected[row]) <= len(rows)  # rounded up to whole ns at each event
