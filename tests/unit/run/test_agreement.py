"""Two runs are compared to the last record, and `--check` compares the first requests of a run in both modes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import servesim
from servesim.errors import PolicyError
from servesim.records.columns import LATE_COLUMNS, REQUEST_COLUMNS, STEP_COLUMNS
from servesim.run.agreement import REQUESTS, Outcome, _outcome, check_beginning, difference
from servesim.run.scenario import Scenario
from servesim.run.setup import set_up
from tests.support.own_policies import SCHEDULER, method
from tests.support.worlds import World, toy_trace

WORLD = World(toy_trace([0, 0, 900, 50_000], [8, 40, 8, 30], [70, 9, 40, 60]), num_blocks=12, replicas=2)
DRAFTS = replace(WORLD, speculation="eagle3:k=2")
BASE: dict[str, Any] = {"model": "llama-3.1-8b", "gpu": "h200"}
SHUFFLES = SCHEDULER.replace("class Mine", "import random\n\nclass Mine") + method(
    "on_arrival(self, request)",
    "super().on_arrival(request)",
    "if request.row >= 10:",
    "    random.shuffle(self.waiting)",
)


def outcomes(world: World = WORLD) -> tuple[Outcome, Outcome]:
    return Outcome.of(world.run("fast")), Outcome.of(world.run("reference"))


def test_both_modes_agree_although_rows_of_fast_mode_stand_for_several_steps() -> None:
    fast, plain = outcomes()
    assert len(fast.steps) < len(plain.steps)
    assert difference(fast, plain) == difference(plain, plain) == ""


REQUEST_CELLS = [name for name in REQUEST_COLUMNS if name not in ("row",)]
STEP_CELLS = [
    name
    for name in STEP_COLUMNS
    if name not in ("replica", "step", "k")  # of a row, or its place
]


@pytest.mark.parametrize("column", REQUEST_CELLS)
def test_every_column_of_a_request_counts(column: str) -> None:
    fast, plain = outcomes()
    fast.requests[2, REQUEST_COLUMNS.index(column)] += 1
    value = plain.requests[2, REQUEST_COLUMNS.index(column)]
    assert difference(fast, plain) == f"request 2: {column} is {value + 1}, in reference mode {value}"


@pytest.mark.parametrize("column", STEP_CELLS)
def test_every_column_of_a_step_counts(column: str) -> None:
    fast, plain = outcomes()
    many = int((fast.steps[:, STEP_COLUMNS.index("k")] > 1).argmax())
    fast.steps[many, STEP_COLUMNS.index(column)] += 1
    told = difference(fast, plain)
    assert told.startswith("step ")
    assert f": {column} " in told


def test_what_is_missing_counts_and_deliveries_and_drafts() -> None:
    fast, plain = outcomes(DRAFTS)
    assert difference(fast, plain) == ""
    assert difference(replace(fast, requests=fast.requests[:-1]), plain).startswith(
        "request 3 has not left, in reference mode it has"
    )
    at = STEP_COLUMNS.index("replica")
    none = replace(fast, steps=fast.steps[fast.steps[:, at] == 0])
    assert difference(none, plain).startswith("step 0 of replica 1: 0 steps in all, in reference mode ")
    late = fast.deliveries.copy()
    late[0, LATE_COLUMNS.index("tokens")] += 1
    assert difference(replace(fast, deliveries=late), plain) == (
        "deliveries differ from the deliveries in reference mode"
    )
    gaps = (fast.gaps[0], fast.gaps[1] + 1)
    assert difference(replace(fast, gaps=gaps), plain) == "gaps between tokens differ from the gaps in reference mode"
    counts = [replace(each, accepted=each.accepted + 1) for each in fast.drafts]
    assert difference(replace(fast, drafts=counts), plain) == (
        "counts of drafts differ from the counts in reference mode"
    )
    reasons = {**fast.reasons, 1: "stop"}
    assert (
        difference(replace(fast, reasons=reasons), plain)
        == "request 1 ends with 'stop', in reference mode with 'length'"
    )


@pytest.mark.medium
def test_a_run_with_check_says_which_request_and_step_differ_first(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SHUFFLES)
    settings = {**BASE, "trace": "synth:rate=5,prompt=200,output=uniform(5,50)", "requests": 40, "rate": "inf"}
    settings["scheduler"] = f"{tmp_path / 'mine.py'}:Mine:max_num_seqs=4"
    assert servesim.simulate(settings).summary["requests"]["completed"] == 40
    told = r"Mine: fast mode differs from reference mode in the first 40 requests: request \d+: .*; step \d+ of "
    with pytest.raises(PolicyError, match=told):
        servesim.simulate(settings, check=True)
    check_beginning(set_up(Scenario.of(settings)), requests=10)  # its lies begin later


@pytest.mark.medium
def test_a_run_with_check_has_the_result_of_one_without() -> None:
    settings = {**BASE, "trace": "synth:rate=50,prompt=100,output=20", "requests": 30}
    assert servesim.simulate(settings, check=True).requests.equals(servesim.simulate(settings).requests)
    assert REQUESTS == 300


@pytest.mark.medium
def test_what_is_compared_are_the_first_requests_of_the_run_itself() -> None:
    settings = {**BASE, "trace": "preset:azure-conv-2023", "requests": 60, "skip": 20, "rate": 9, "seed": 3}
    settings |= {"shape": ["thin:keep=0.8"], "preset": "sglang", "replicas": 2}
    setup = set_up(Scenario.of(settings))
    found = _outcome(setup, "reference", 10)
    assert isinstance(found, Outcome)
    whole = servesim.simulate(settings).requests
    for column in ("arrival_ns", "prompt_len", "max_tokens"):
        assert found.requests[:, REQUEST_COLUMNS.index(column)].tolist() == whole[column][:10].tolist()


@pytest.mark.medium
def test_a_policy_that_waits_for_more_requests_than_are_compared_is_left_to_the_run(tmp_path: Path) -> None:
    waits = method("plan(self, ctx)", "return super().plan(ctx) if self.seen >= 12 else ctx.plan")
    counts = method("on_arrival(self, request)", "super().on_arrival(request)", "self.seen += 1")
    text = SCHEDULER.replace("class Mine", "class Base") + f"\nclass Mine(Base):\n    seen = 0\n{counts}{waits}"
    (tmp_path / "mine.py").write_text(text)
    settings = {**BASE, "trace": "synth:rate=50,prompt=100,output=20", "requests": 15}
    setup = set_up(Scenario.of({**settings, "scheduler": f"{tmp_path / 'mine.py'}:Mine"}))
    assert isinstance(_outcome(setup, "fast", 10), PolicyError)
    check_beginning(setup, requests=10)
