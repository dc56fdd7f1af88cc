"""The scheduler and the loop under random events: budgets hold, tokens are conserved, nobody is lost."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from servesim.contracts import Request, State
from servesim.workload.workload import RunContent
from tests.support.examples import examples
from tests.support.worlds import World, toy_trace

SEQS, BUDGET = 3, 24


class Loop(RuleBasedStateMachine):
    """Requests arrive, are cancelled, steps are planned and committed, several in flight."""

    asynchronous = False
    kv = "paged"
    policy = "fcfs"

    def __init__(self) -> None:
        super().__init__()
        world = World(
            toy_trace([0], [1], [1]),
            kv=self.kv,
            num_blocks=12,
            scheduler_params={"policy": self.policy},
            max_num_seqs=SEQS,
            max_num_batched_tokens=BUDGET,
            max_model_len=11 * 16,
            asynchronous=self.asynchronous,
        )
        self.core = world.core(check=True)
        self.depth = 2 if self.asynchronous else 3  # vLLM's rule for the last token is made for two
        self.core.on_leave = self._left
        self.now = 0
        self.requests: list[Request] = []
        self.left: list[Request] = []
        self.computed = 0  # tokens computed by all steps

    def _left(self, request: Request) -> None:
        self.left.append(request)

    @rule(
        prompt=st.integers(1, 70), output=st.integers(1, 40), spare=st.sampled_from([0, 0, 5]), prio=st.integers(0, 2)
    )
    def arrive(self, prompt: int, output: int, spare: int, prio: int) -> None:
        row = len(self.requests)
        head = min(32, prompt)
        runs = [r for r in ((1, head), (100 + row, prompt - head)) if r[1]]
        content = RunContent(row, runs)
        request = Request(row, str(row), prompt, output + spare, self.now, prio, content=content)
        self.requests.append(request)
        self.core.add(request, output, self.now)

    @rule()
    def plan(self) -> None:
        if len(self.core.in_flight) >= self.depth:
            return
        running = list(self.core.scheduler.running)
        step = self.core.plan(self.now)
        plan = self.core.last_plan
        assert plan is not None
        kept = [r for r in running if r.state is State.RUNNING]
        assert self.core.scheduler.running[: len(kept)] == kept, "running requests keep their order"
        assert not (plan.preempted and (plan.admitted or plan.resumed)), "admits in a step that preempts"
        if step is not None:
            assert 0 < step.batch.linear_tokens <= BUDGET
            self.computed += step.batch.linear_tokens

    @rule(dt=st.integers(1, 5))
    def commit(self, dt: int) -> None:
        self.now += dt
        if self.core.in_flight:
            self.core.commit(self.now)

    @rule(pick=st.integers(0, 1 << 20))
    def cancel(self, pick: int) -> None:
        there = [r for r in self.requests if r not in self.left]
        if there and pick % 5 == 0:
            self.core.abort(there[pick % len(there)], self.now)

    @invariant()
    def limits_hold(self) -> None:
        assert len(self.core.scheduler.running) <= SEQS
        here = len(self.core.scheduler.running) + self.core.scheduler.num_waiting()
        assert here + len(self.left) == len(self.requests), "a request is lost"
        assert len(set(self.left)) == len(self.left), "a request left twice"

    def teardown(self) -> None:
        """Let everything finish: every request ends once with its own output length."""
        for _ in range(20_000):
            while len(self.core.in_flight) < self.depth and self.core.plan(self.now) is not None:
                self.computed += self.core.in_flight[-1].batch.linear_tokens
            if not self.core.in_flight:
                break
            self.now += 1
            self.core.commit(self.now)
        assert len(self.left) == len(self.requests)
        assert self.core.kv.held_tokens == 0
        assert self.core.kv.usage().used == 0
        due = 0
        for request in self.requests:
            if request.state is State.FINISHED:
                assert request.num_tokens == request._end_tokens
                assert request.reason == ("length" if request.num_output_tokens == request.max_tokens else "stop")
                # Only a stop that nobody foresaw leaves steps in flight that compute for nothing.
                most = 1 if self.asynchronous and request.reason == "stop" else 0
                assert request.num_computed_tokens - (request.num_tokens - 1) <= most
            # All tokens of a request but the last are computed; hits spare some, preemptions repeat some.
            # One that ends while preempted leaves what it lost.
            due += request.num_computed_tokens + request.recomputed_tokens - request.hit_tokens + request.lost_tokens
        assert self.computed == due, "tokens are not conserved"


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("kv", ["paged", "prefix-hash"])
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_vllm_conserves_tokens_and_requests(asynchronous: bool, kv: str, policy: str) -> None:
    machine = type("Machine", (Loop,), {"asynchronous": asynchronous, "kv": kv, "policy": policy})
    case = machine.TestCase  # type: ignore[attr-defined]
    case.settings = examples(40, stateful_step_count=50)
    case("runTest").runTest()
