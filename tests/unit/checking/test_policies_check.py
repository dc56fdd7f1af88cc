"""`servesim policies check` finds policies that lie or break their contract, each in one line, and passes those that do
not."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from servesim.checking import attempt
from servesim.checking.check import Report, check
from servesim.checking.draw import draw
from servesim.checking.subject import Subject
from servesim.cli import app as cli
from servesim.errors import UserError
from tests.support.own_policies import method

pytestmark = pytest.mark.medium
WORLDS = range(2, 18)
"""Of one to ten requests."""
BATCHING = '''
import datetime
import os
import random
import time

import numpy as np
from servesim.contracts import KVAllocator, Plan, Router, Scheduler, Usage


class Batching(Scheduler):
    """Continuous batching; whoever finds no memory gives up its own."""

    def plan(self, ctx):
        for request in list(self.running):
            if request.num_computed_tokens < request.num_tokens and not ctx.extend(request, 1):
                ctx.preempt(request)
                self.running.remove(request)
                self.waiting.appendleft(request)
        for request in self.order(list(self.waiting)):
            new = request.num_tokens - self.kv.lookup(request).num_tokens
            if len(self.running) >= self.limits.max_num_seqs or not ctx.admit(request, new):
                break
            self.waiting.remove(request)
            self.running.append(request)
        return ctx.plan

    def order(self, waiting):
        return waiting


class Mine(Batching):
'''
CLOCK = "determinism: Mine depends on the wall clock: "
RANDOM = "determinism: Mine depends on the global state of random or numpy.random: "
SCHEDULERS = {
    "the wall clock": (
        CLOCK,
        method("order(self, waiting)", "return waiting[:: 1 if int(time.time() * 1000) % 2 else -1]"),
    ),
    "the time of day": (
        CLOCK,
        method("order(self, waiting)", "return waiting[:: 1 if datetime.datetime.now().second < 30 else -1]"),
    ),
    "random": (RANDOM, method("order(self, waiting)", "random.shuffle(waiting)", "return waiting")),
    "numpy.random": (RANDOM, method("order(self, waiting)", "return sorted(waiting, key=lambda r: np.random.rand())")),
    "a generator of its own": (
        "determinism: Mine depends on its own unseeded generator, or the order of a set of objects: request ",
        method("order(self, waiting)", "return sorted(waiting, key=lambda r: random.Random().random())"),
    ),
    "the order of a set of names": (
        r"determinism: Mine depends on hash\(\) or the order of a set: ",
        method("order(self, waiting)", "named = {r.name: r for r in waiting}", "return [named[n] for n in set(named)]"),
    ),
    "what earlier runs left": (
        "determinism: Mine depends on state kept between runs, in a global or an attribute of its class",
        "    told = 0\n"
        + method("order(self, waiting)", "Mine.told += 1", "return waiting[:: 1 - 2 * (Mine.told % 2)]"),
    ),
    "a request is forgotten": (
        r"contract: Mine at \d+ ns: \d+ requests are no longer in any queue \(request-2\) \(world ",
        method("on_arrival(self, request)", "if request.row != 2:", "    self.waiting.append(request)"),
    ),
    "a request is starved": (
        r"contract: Mine at \d+ ns: plans nothing although \d+ requests wait \((0_)?request-2\) \(world ",
        method("order(self, waiting)", "return [r for r in waiting if r.row != 2]"),
    ),
    "another plan": (
        r"contract: Mine at \d+ ns: plan returns Plan\(step_id=0",
        method("plan(self, ctx)", "super().plan(ctx)", "return Plan(ctx.plan.step_id)"),
    ),
    "the plan before": (
        r"contract: Mine at \d+ ns: plan returns Plan\(step_id=0, \.\.\.\), not ctx.plan \(world ",
        "    last = None\n"
        + method(
            "plan(self, ctx)",
            "last, self.last = self.last, super().plan(ctx)",
            "return self.last if last is None else last",
        ),
    ),
    "a number that is none": (
        r"contract: Mine at \d+ ns: plan raises TypeError: int object expected; got float \(mine.py line \d+\) \(",
        method("plan(self, ctx)", "for r in self.running:", "    ctx.extend(r, 1.0)", "return super().plan(ctx)"),
    ),
    "nothing is served": (
        f"contract: Mine: no request was served in {len(WORLDS)} worlds",
        method(
            "plan(self, ctx)",
            "while self.waiting:",
            "    ctx.reject(self.waiting.popleft(), 'no')",
            "return ctx.plan",
        ),
    ),
    "async is claimed, and steps wait for tokens": (
        r'settings: Mine: supports contains "async", but in \d+ worlds no step was planned while one was in flight',
        "    supports = {'async'}\n",
    ),
    "async is claimed, and fails": (
        r'settings: supports contains "async", but planned ahead: .*not known yet \(mine.py line ',
        "    supports = {'async'}\n"
        + method(
            "plan(self, ctx)",
            "for r in self.running:",
            "    if self.limits.async_scheduling and r.num_output_placeholders:",
            "        raise ValueError('not known yet')",
            "return super().plan(ctx)",
        ),
    ),
    "a claim is misspelt": (
        r"settings: supports of Mine has the unknown entry 'asink' \(did you mean \"async\"\?\)",
        "    supports = {'asink'}\n",
    ),
}


def checked(folder: Path, text: str, worlds: range = WORLDS) -> Report:
    file = folder / "mine.py"
    file.write_text(text)
    return check(Subject.of(f"{file}:Mine"), worlds)


SLOW = ("the time of day", "numpy.random", "a generator of its own", "what earlier runs left")
"""Found as others that stay are, each in five seconds: five processes run every world again."""


@pytest.mark.parametrize(
    ("told", "lie"),
    [pytest.param(*case, id=lie, marks=[pytest.mark.slow] * (lie in SLOW)) for lie, case in SCHEDULERS.items()],
)
def test_a_scheduler_that_lies_is_found_in_one_line(told: str, lie: str, tmp_path: Path) -> None:
    line, *others = checked(tmp_path, BATCHING + lie).failures
    assert re.match(told, line), line
    assert "\n" not in line
    # with a core that crashed, the name of the request is gone
    assert all(re.match(told.partition(r" \(request")[0], other) and "with failures" in other for other in others)


OVERCOMMITS = '''

class Mine(KVAllocator):
    """Hands out whatever is asked for."""

    def __init__(self, params, memory):
        super().__init__(params, memory)
        self.held = {}

    def can_admit(self, request, hit, now_tokens, full_tokens, reserve):
        return True

    def admit(self, request, hit, num_tokens, lookahead):
        self.held[request] = num_tokens + lookahead

    def grow(self, request, num_tokens, lookahead=0):
        self.held[request] = max(self.held[request], request.num_computed_tokens + num_tokens + lookahead)
        return True

    def free(self, request):
        del self.held[request]

    def slots(self, request):
        return self.held.get(request, 0)

    def usage(self):
        held = sum(self.held.values())
        return Usage(self.held_tokens, held - self.held_tokens, 0, self.capacity_tokens - held)
'''
IMPURE = """
from servesim.contracts import AcceptanceModel


class Mine(AcceptanceModel):
    asked = 0

    def accepted(self, request, position, drafts, width=1):
        self.asked += 1
        return drafts * (self.asked % 3 == 0)

    def rates(self, k):
        return [0.3] * k
"""
ROUTER = BATCHING.replace("class Mine(Batching):", "class Mine(Router):")
UNSETTLED = """
from dataclasses import dataclass, field

from servesim.contracts import Router


class Odd:
    pass


@dataclass(frozen=True)
class Params:
    odd: object = field(default_factory=Odd)


class Mine(Router):
    Params = Params

    def route(self, request, views):
        return views.ready[0]
"""
OTHERS = {
    "an allocator over-commits": (
        BATCHING.replace("class Mine(Batching):\n", "") + OVERCOMMITS,
        "invariants: Mine at ",
    ),
    "a router points nowhere": (
        ROUTER + method("route(self, request, views)", "return request.row"),
        "contract: Mine at ",
    ),
    "a router goes by its process": (
        ROUTER + method("route(self, request, views)", "return views.ready[hash(request.name) % len(views.ready)]"),
        "determinism: Mine depends on hash() or the order of a set: ",
    ),
    "an acceptance model counts": (
        IMPURE,
        "determinism: Mine: 'accepted' must depend only on the request and the position (row 0",
    ),
    "a parameter cannot be written down": (UNSETTLED, "settings: Mine: parameter odd = "),
}


@pytest.mark.parametrize(("text", "told"), OTHERS.values(), ids=OTHERS)
def test_policies_of_other_kinds_are_found_too(text: str, told: str, tmp_path: Path) -> None:
    line, *others = checked(tmp_path, text).failures  # of prefill and decode apart, in words of their own
    assert all(other.startswith(told.partition(":")[0]) for other in others)
    assert line.startswith(told)
    assert " at 0x" not in line


@pytest.mark.parametrize("name", ["vllm", "sarathi", "sglang", "paged", "prefix-hash", "least-outstanding", "eagle3"])
def test_built_in_policies_pass(name: str) -> None:
    report = check(Subject.of(name), range(12))
    assert report.failures == report.notes == []
    assert report.runs == 12 * 5


def test_continuous_batching_of_the_users_own_passes(tmp_path: Path) -> None:
    report = checked(tmp_path, f"{BATCHING}    pass\n", range(12))
    assert report.failures == report.notes == []
    assert report.runs == 12 * 5


def test_who_plans_again_what_is_in_a_pipeline_is_told_and_not_failed(tmp_path: Path) -> None:
    text = BATCHING.replace("request.num_computed_tokens < request.num_tokens and not", "not")
    report = checked(tmp_path, f"{text}    pass\n")
    assert report.failures == []
    (note,) = report.notes
    assert re.match(
        r"it does not work with pipelines: Mine at \d+ ns, step \d+: schedules 1 tokens of <request-\d", note
    )


def test_a_run_that_does_not_end_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy sends the alarm itself, so that it comes there, whatever the machine does."""
    spins = (
        "if os.environ.get('SPIN'):\n"
        "            assert signal.getitimer(signal.ITIMER_REAL)[0] > 0\n"
        "            while True:\n"
        "                signal.raise_signal(signal.SIGALRM)"
    )
    monkeypatch.setenv("SPIN", "")
    file = tmp_path / "mine.py"
    spinning = method("order(self, waiting)", *spins.splitlines(), "return waiting")
    file.write_text(f"import signal\n{BATCHING}{spinning}")
    world = draw(2, Subject.of(f"{file}:Mine"))
    assert attempt.attempt(world, "reference").outcome is not None
    monkeypatch.setenv("SPIN", "1")
    error = attempt.attempt(world, "reference").error
    assert error.startswith("a run of a few requests did not end within 60 s (in order, mine.py line ")


def test_worlds_are_the_same_whenever_they_are_drawn_and_differ_by_number() -> None:
    subject = Subject.of("vllm")
    told = [draw(number, subject).told() for number in range(40)]
    assert told == [draw(number, subject).told() for number in range(40)]
    assert len(set(told)) > 30
    worlds = [draw(number, subject) for number in range(80)]
    for seen in (
        lambda w: w.asynchronous,
        lambda w: w.depth == 2 and not w.asynchronous,
        lambda w: w.speculation,
        lambda w: w.trace.samples is not None,
        lambda w: w.trace.content is not None,
        lambda w: w.trace.cancel_ns is not None,
        lambda w: w.clients.timeout_ns is not None,
        lambda w: w.replicas > 1,
    ):
        assert 5 <= sum(bool(seen(world)) for world in worlds) <= 60


def called(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["servesim", "policies", *arguments])
    return cli._guarded()


def test_the_command_says_one_line_a_failure_and_what_was_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(BATCHING + SCHEDULERS["another plan"][1])
    assert called(monkeypatch, "check", f"{file}:Batching", "--worlds", "4") == 0
    assert capfd.readouterr().out.startswith("20 runs in ")
    assert called(monkeypatch, "check", f"{file}:Mine", "--world", "3") == 1
    failure, closing = capfd.readouterr().out.splitlines()
    assert failure.startswith("contract: Mine at ")
    assert "(world 3: " in failure
    assert closing.startswith("2 runs in ")
    assert closing.endswith(" s: 1 failure")
    for wrong in (["check"], ["check", "vlm"], ["check", "vllm:knob=1"], ["vllm", "paged"], ["check", f"{file}:time"]):
        assert called(monkeypatch, *wrong) == 2
        error = capfd.readouterr().err
        assert error.startswith("error: ")
        assert error.count("\n") == 1


def test_a_class_that_is_no_policy_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("class Mine:\n    pass\n")
    with pytest.raises(UserError, match="Mine is not a policy: it must derive from a contract"):
        Subject.of(f"{file}:Mine")
