"""What the engine refuses: policies that break their contract, requests that can never fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from servesim.contracts import Plan, PlanContext, Request, Scheduler, State, build_params, schedulers
from servesim.errors import PolicyError, UserError
from servesim.records.columns import REQUEST_COLUMNS
from tests.support.worlds import World, toy_trace

SMALL = toy_trace([0, 0, 0], [8, 8, 8], [4, 4, 4])


class Faulty(Scheduler):
    """Admits one request as told by the subclass."""

    def plan(self, ctx: PlanContext) -> Plan:
        if self.waiting and not self.running:
            request = self.waiting.popleft()
            self.running.append(request)
            self.mistake(ctx)
        return ctx.plan

    def mistake(self, ctx: PlanContext) -> None:
        raise NotImplementedError


def run_with(mistake: str, tmp_path: Path) -> None:
    file = tmp_path / "faulty.py"
    file.write_text(
        "from tests.unit.engine.test_contract import Faulty\n"
        "class Wrong(Faulty):\n"
        "    def mistake(self, ctx):\n"
        f"        request = self.running[-1]\n        {mistake}\n"
    )
    World(SMALL, scheduler=f"{file}:Wrong").run()


@pytest.mark.parametrize(
    ("mistake", "reason"),
    [
        ("ctx.schedule(request, 8)", "not running"),
        ("ctx.admit(request, 8); ctx.schedule(request, 9)", "only 8 tokens are known"),
        ("ctx.admit(request, 1); ctx.schedule(request, 0)", "at least one"),
        ("ctx.preempt(request)", "not running"),
        ("ctx.output_len(request)", "without declaring"),
        ("pass", "plans nothing although 3 requests wait"),
    ],
)
def test_an_illegal_plan_is_refused_by_policy_time_and_reason(mistake: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=reason) as error:
        run_with(mistake, tmp_path)
    assert "Wrong" in str(error.value)
    assert " 0 ns" in str(error.value) or "declaring" in str(error.value)


@pytest.mark.parametrize("waiting", [0, 3])
def test_empty_plans_in_a_row_are_followed_up_twice_for_each_request_and_twice_more(waiting: int) -> None:
    requests = [Request(row, str(row), 8, 4, 0) for row in range(waiting)]
    core, still = World(SMALL).core(), World(SMALL).core()
    core.scheduler.waiting.extend(requests)
    core.last_plan, still.last_plan = Plan(0), Plan(0)
    core.last_plan.admitted.append(Request(9, "9", 8, 4, 0))
    assert [core.moved() for _ in range(2 * waiting + 4)] == [True] * (2 * waiting + 2) + [False] * 2
    assert not still.moved()


def test_memory_that_was_not_allocated_cannot_be_used(tmp_path: Path) -> None:
    trace = toy_trace([0], [40], [4])
    file = tmp_path / "short.py"
    file.write_text(
        "from tests.unit.engine.test_contract import Faulty\n"
        "class Short(Faulty):\n"
        "    def mistake(self, ctx):\n"
        "        ctx.admit(self.running[-1], 4); ctx.schedule(self.running[-1], 40)\n"
    )
    with pytest.raises(PolicyError, match="which has memory for only 16 tokens"):
        World(trace, scheduler=f"{file}:Short").run()


def test_a_policy_file_of_a_few_lines_runs_and_serves_everything(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from servesim.contracts import Scheduler\n"
        "\n"
        "class OneByOne(Scheduler):\n"
        '    """Serves one request at a time."""\n'
        "    def plan(self, ctx):\n"
        "        if self.running:\n"
        "            ctx.extend(self.running[0], 1)\n"
        "        elif self.waiting and ctx.admit(self.waiting[0], self.waiting[0].prompt_len):\n"
        "            self.running.append(self.waiting.popleft())\n"
        "        return ctx.plan\n"
    )
    cluster = World(SMALL, scheduler=f"{file}:OneByOne").run(check=True)
    assert cluster.recorder.requests.column("output_len").tolist() == [4, 4, 4]
    assert cluster.recorder.steps.column("sampled").max() == 1


def test_a_request_that_can_never_fit_is_rejected_and_the_run_goes_on() -> None:
    trace = toy_trace([0, 0, 0, 10], [8, 500, 90, 8], [4, 4, 20, 4])
    cluster = World(trace, num_blocks=8, max_model_len=100).run(check=True)
    rows = cluster.recorder.requests.array()
    states = dict(zip(rows[:, 0].tolist(), rows[:, REQUEST_COLUMNS.index("state")].tolist(), strict=True))
    assert states == {0: State.FINISHED, 1: State.REJECTED, 2: State.REJECTED, 3: State.FINISHED}
    assert "max_model_len 100" in cluster.recorder.reasons[1]


def test_memory_too_small_for_a_request_alone_rejects_it() -> None:
    cluster = World(toy_trace([0, 0], [64, 8], [4, 4]), num_blocks=4).run(check=True)
    assert "KV memory" in cluster.recorder.reasons[0]
    assert cluster.recorder.reasons[1] == "length"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("vlm", 'did you mean "vllm"'),
        ("nowhere.py:X", "does not exist"),
        ("vllm:polcy=fcfs", "polcy"),
    ],
)
def test_policy_names_are_checked_with_a_suggestion(spec: str, message: str) -> None:
    def build() -> None:
        cls, params = schedulers.resolve(spec)
        build_params("scheduler vllm", cls.Params, dict(params))

    with pytest.raises(UserError, match=message):
        build()


def test_a_plan_that_only_preempts_is_followed_by_another() -> None:
    # A held chunk stands before a decode that gives way to itself: nothing is scheduled, yet work is left.
    params = {
        "prefill_schedule_interval": 5,
        "long_prefill_token_threshold": 10,
        "scheduler_reserve_full_isl": False,
    }
    world = World(toy_trace([0, 0], [60, 14], [4, 60]), num_blocks=7, scheduler_params=params)
    for mode in ("fast", "reference"):
        assert sorted(world.run(mode, check=True).recorder.requests.column("output_len").tolist()) == [4, 60]


def test_dummy_drafts_give_way_to_the_prefill_threshold() -> None:
    runs = [[(1, 33)]] * 3
    trace = toy_trace([0, 100_000, 100_000], [33] * 3, [1, 2, 2], runs=runs)
    params = {"num_speculative_tokens": 4, "long_prefill_token_threshold": 2}
    cluster = World(trace, kv="prefix-hash", scheduler_params=params).run(check=True)
    assert cluster.recorder.requests.column("output_len").tolist() == [1, 2, 2]


def test_a_policy_file_that_registers_itself_can_be_named_again(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    text = (
        "from servesim.contracts import schedulers\n"
        "from servesim.policies.scheduling.vllm import Vllm\n"
        "@schedulers.register('mine-again')\n"
        "class Mine(Vllm):\n"
        "    '''vLLM's scheduler by another name.'''\n"
    )
    for version in (text, text, text + "# edited\n"):
        file.write_text(version)
        cls, _ = schedulers.resolve(f"{file}:Mine")
        assert cls.__name__ == "Mine"


POLICY = (
    "from servesim.contracts import Scheduler\n"
    "class Mine(Scheduler):\n"
    "    def plan(self, ctx):\n"
    "        {plan}\n"
    "    def on_arrival(self, request):\n"
    "        {arrival}\n"
)


@pytest.mark.parametrize(
    ("plan", "arrival", "reason"),
    [
        ("return None", "self.waiting.append(request)", "plan returns None, not ctx.plan"),
        ("return self.nothing", "self.waiting.append(request)", r"AttributeError.*mine\.py line 4"),
        ("raise SystemExit(0)", "self.waiting.append(request)", "plan raises SystemExit"),
        ("return ctx.plan", "pass", "3 requests are no longer in any queue"),
    ],
)
def test_a_broken_policy_is_named_with_time_and_reason(plan: str, arrival: str, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(POLICY.format(plan=plan, arrival=arrival))
    with pytest.raises(PolicyError, match=f"Mine at 0 ns: .*{reason}"):
        World(SMALL, scheduler=f"{file}:Mine").run()


def test_a_class_that_is_no_scheduler_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.py"
    file.write_text("class Other:\n    pass\n")
    with pytest.raises(UserError, match="Other does not derive from Scheduler"):
        schedulers.resolve(f"{file}:Other")


def test_a_request_that_ends_while_preempted_has_recomputed_nothing() -> None:
    world = World(SMALL, num_blocks=4, depth=2, max_num_batched_tokens=8)
    core = world.core(check=True)
    left: list[Request] = []
    core.on_leave = left.append
    request = Request(0, "0", 20, 1, 0)
    core.add(request, 1, 0)
    while request.num_computed_tokens < 20:
        core.plan(0)
    ctx = PlanContext("test", 0, Plan(9), core.kv, core.ledger)
    ctx.preempt(core.scheduler.running.pop())
    core.scheduler.waiting.append(request)
    for step in core.in_flight:
        step.stale = {request}
    while core.in_flight:
        core.commit(5)
    assert left == [request]
    assert (request.recomputed_tokens, request.lost_tokens) == (0, 20)


SWAPPER = """
from collections import deque
from servesim.contracts import Scheduler

class Swapper(Scheduler):
    '''Two requests take turns, one in memory, one on the host.'''
    def __init__(self, *args):
        super().__init__(*args)
        self.swapped = deque()
    def waiters(self):
        yield from self.swapped
        yield from self.waiting
    def num_waiting(self):
        return len(self.swapped) + len(self.waiting)
    def plan(self, ctx):
        back = None
        if self.running and self.num_waiting():
            assert ctx.swap_out(self.running[0])
            back = self.running.pop()
        if self.waiting:
            self.running.append(self.waiting.popleft())
            assert ctx.admit(self.running[0], self.running[0].prompt_len)
        elif self.swapped:
            self.running.append(self.swapped.popleft())
            assert ctx.swap_in(self.running[0], 1)
        elif self.running:
            assert ctx.extend(self.running[0], 1)
        if back is not None:
            self.swapped.append(back)
        return ctx.plan
"""


def test_swapped_requests_keep_what_they_computed_and_the_bytes_are_charged(tmp_path: Path) -> None:
    file = tmp_path / "swapper.py"
    file.write_text(SWAPPER)
    trace = toy_trace([0, 0], [16, 20], [3, 3])
    cluster = World(trace, num_blocks=3, host_blocks=4, scheduler=f"{file}:Swapper").run(check=True)
    # Prompt A; A out (16), prompt B; B out (32 in whole blocks), A in (16) and so on, by turns.
    moved = cluster.recorder.steps.column("bytes_moved").tolist()
    assert moved == [0, 16, 32 + 16, 32 + 32, 32 + 32, 32]
    requests = cluster.recorder.requests
    assert requests.column("num_preemptions").tolist() == [2, 2]
    assert requests.column("recomputed_tokens").tolist() == [0, 0]


def test_answers_held_back_leave_with_the_batch(tmp_path: Path) -> None:
    file = tmp_path / "together.py"
    file.write_text(
        "from servesim.contracts import Scheduler\n"
        "class Together(Scheduler):\n"
        "    held = ()\n"
        "    def plan(self, ctx):\n"
        "        while self.waiting and not self.held:\n"
        "            self.running.append(self.waiting.popleft())\n"
        "            ctx.admit(self.running[-1], self.running[-1].prompt_len)\n"
        "        for request in self.running:\n"
        "            if request not in ctx.plan.tokens:\n"
        "                ctx.extend(request, 1)\n"
        "        ctx.plan.layout, ctx.plan.padded_rows = 'padded', len(self.held)\n"
        "        ends = [r.num_computed_tokens + n for r, n in ctx.plan.tokens.items()]\n"
        "        ctx.plan.padded_len = max(ends, default=0)\n"
        "        return ctx.plan\n"
        "    def on_finish(self, requests):\n"
        "        super().on_finish(requests)\n"
        "        self.held = (*self.held, *requests)\n"
        "        if self.running:\n"
        "            return ()\n"
        "        done, self.held = self.held, ()\n"
        "        return done\n"
    )
    cluster = World(toy_trace([0, 0], [8, 5], [1, 3]), scheduler=f"{file}:Together").run(check=True)
    requests, steps = cluster.recorder.requests, cluster.recorder.steps
    assert len(set(requests.column("finished_ns").tolist())) == 1
    assert sorted(requests.column("last_token_ns").tolist())[0] < requests.column("finished_ns")[0]
    assert steps.column("padded_tokens").tolist() == [3, 1, 1]  # 2 x 8 for 13; then one finished row beside one


def test_policies_that_preempt_for_ever_are_stopped_by_name_and_state(tmp_path: Path) -> None:
    file = tmp_path / "quarrel.py"
    file.write_text(
        "from servesim.contracts import Scheduler\n"
        "class Quarrel(Scheduler):\n"
        "    def plan(self, ctx):\n"
        "        if self.running:\n"
        "            ctx.preempt(self.running[0])\n"
        "            self.waiting.append(self.running.pop())\n"
        "        self.running.append(self.waiting.popleft())\n"
        "        ctx.admit(self.running[0], 7)\n"
        "        return ctx.plan\n"
    )
    with pytest.raises(
        PolicyError,
        match=r"Quarrel at .* on kv paged .* 1 requests are running, 2 are waiting, and .* are free, "
        "so requests preempt each other forever",
    ):
        World(SMALL, scheduler=f"{file}:Quarrel").run()


REPLANS = (
    "from servesim.contracts import Scheduler\n"
    "class Replans(Scheduler):\n"
    "    def plan(self, ctx):\n"
    "        for request in self.running:\n"
    "            ctx.extend(request, 1)\n"
    "        while self.waiting and ctx.admit(self.waiting[0], self.waiting[0].prompt_len):\n"
    "            self.running.append(self.waiting.popleft())\n"
    "        return ctx.plan\n"
)


@pytest.mark.parametrize("mode", ["reference", "fast"])
def test_a_token_that_is_not_known_yet_cannot_be_computed_from(mode: str, tmp_path: Path) -> None:
    """Two stages: at 0 ns the second step is planned while the first, which gives the first token, is in flight."""
    file = tmp_path / "replans.py"
    file.write_text(REPLANS)
    world = World(toy_trace([0], [8], [4]), scheduler=f"{file}:Replans", depth=2)
    with pytest.raises(PolicyError, match=r"Replans at 0 ns, step 1: schedules 1 tokens of <0 .*known.*in flight"):
        world.run(mode)
    assert World(toy_trace([0], [8], [4]), scheduler=f"{file}:Replans").run(mode).num_left == 1
