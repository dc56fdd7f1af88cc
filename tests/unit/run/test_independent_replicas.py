"""Replicas in processes of their own leave the bytes of one process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import servesim
from servesim.contracts.router import routers
from servesim.errors import PolicyError, UserError
from servesim.traces import synthesize

BASE: dict[str, Any] = {"model": "llama-3.1-8b", "gpu": "h200", "replicas": 3, "slo": "ttft:200"}
FILES = ("summary.json", "requests.parquet", "steps.parquet", "deliveries.parquet", "scenario.yaml")
EAGLE = {"speculation": "eagle:k=3", "acceptance": "positions:marginal=0.7/0.5/0.3"}
STARVES = """
from servesim.contracts.scheduler import Scheduler


class Starves(Scheduler):
    def plan(self, ctx):
        return ctx.plan
"""


@pytest.mark.medium
@pytest.mark.parametrize("extra", [{}, EAGLE, {"kv": "paged", "engine": {"num_gpu_blocks": 400}}])
def test_the_bytes_are_those_of_one_process(
    tmp_path: Path, extra: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("servesim.records.recorder.FLUSH_CELLS", 4000)  # several chunks on their way to the files
    spec = "rate=90,prompt=lognormal(p50=400,p95=1500),output=uniform(1,200),prefix=shared(groups=3,length=64)"
    settings = {**BASE, **extra, "trace": f"synth:{spec}", "requests": 240}
    servesim.simulate(**settings, out=tmp_path / "one")
    apart = servesim.simulate(**settings, out=tmp_path / "apart", jobs=2)
    for file in FILES:
        assert (tmp_path / "apart" / file).read_bytes() == (tmp_path / "one" / file).read_bytes(), file
    assert apart.timing["loop_cpu_s"] is not None


@pytest.mark.medium
@pytest.mark.usefixtures("interrupted_start")
def test_an_interrupt_is_not_for_the_processes_that_serve_replicas() -> None:
    result = servesim.simulate(**BASE, trace="synth:rate=50,output=20", requests=12, jobs=2)
    assert result.summary["requests"]["completed"] == 12


@pytest.mark.medium
def test_requests_sent_at_one_instant_stay_in_order(tmp_path: Path) -> None:
    trace = synthesize("rate=50,output=uniform(1,30)", 120)
    trace = replace(trace, arrival_ns=trace.arrival_ns // 10**9 * 10**9)  # bursts, replicas in step with each other
    servesim.simulate(**BASE, trace=trace, out=tmp_path / "one")
    servesim.simulate(**BASE, trace=trace, out=tmp_path / "apart", jobs=3)
    for file in FILES:
        assert (tmp_path / "apart" / file).read_bytes() == (tmp_path / "one" / file).read_bytes(), file


@pytest.mark.medium
@pytest.mark.parametrize("requests", [1, 2, 3, 7])
def test_replicas_with_nothing_to_do_change_nothing(tmp_path: Path, requests: int) -> None:
    settings = {**BASE, "replicas": 5, "trace": "synth:rate=3,output=20", "requests": requests}
    servesim.simulate(**settings, out=tmp_path / "one")
    servesim.simulate(**settings, out=tmp_path / "apart", jobs=2)
    for file in FILES:
        assert (tmp_path / "apart" / file).read_bytes() == (tmp_path / "one" / file).read_bytes(), file


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"router": "least-outstanding"}, "router least-outstanding looks at the state of replicas"),
        ({"clients": {"max_concurrency": 4}}, "max_concurrency makes requests wait"),
        ({"clients": {"timeout_s": 9}}, "clients give up"),
        ({"trace": "synth:turns=chat(turns=3,think=1)"}, "requests wait for other requests"),
        ({"trace": "synth:n=2"}, "several samples"),
        ({"stream": True}, "a streamed run writes requests in the order"),
    ],
)
def test_replicas_that_depend_on_each_other_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        servesim.simulate(**{**BASE, "trace": "synth:rate=1", "requests": 20, **settings}, jobs=2)


@pytest.mark.medium
def test_what_goes_wrong_in_a_process_is_told_here(tmp_path: Path) -> None:
    (tmp_path / "starves.py").write_text(STARVES)
    settings = {**BASE, "trace": "synth:rate=1", "requests": 6, "scheduler": f"{tmp_path}/starves.py:Starves"}
    with pytest.raises(PolicyError, match="plans nothing although"):
        servesim.simulate(**settings, jobs=2)


def test_routers_say_whether_they_are_blind() -> None:
    names = ("least-outstanding", "round-robin", "session-hash")
    assert [name for name in names if routers.resolve(name)[0].blind] == ["round-robin", "session-hash"]


@pytest.mark.medium
def test_a_hash_keeps_conversations_together_and_apart_from_each_other(tmp_path: Path) -> None:
    trace = synthesize("rate=60,output=uniform(1,40)", 200)
    trace = replace(trace, labels={"session": tuple(f"s{i % 23}" if i % 3 else "" for i in range(200))})
    one = servesim.simulate(**BASE, trace=trace, router="session-hash", out=tmp_path / "one")
    servesim.simulate(**BASE, trace=trace, router="session-hash", out=tmp_path / "apart", jobs=2)
    for file in FILES:
        assert (tmp_path / "apart" / file).read_bytes() == (tmp_path / "one" / file).read_bytes(), file
    rows = one.requests
    of_session = rows[rows["session"] != ""].groupby("session")["replica"].nunique()
    assert of_session.tolist() == [1] * 23
    assert (rows.groupby("replica").size() > 40).tolist() == [True] * 3


def test_rows_go_on_in_the_chunks_they_would_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from servesim.records.recorder import Table

    monkeypatch.setattr("servesim.records.recorder.FLUSH_CELLS", 10)
    rows = np.arange(33).reshape(11, 3)
    single: list[list[list[int]]] = []
    many: list[list[list[int]]] = []
    one, other = (
        Table(("a", "b", "c"), lambda r: single.append(r.tolist())),
        Table(("a", "b", "c"), lambda r: many.append(r.tolist())),
    )
    for row in rows.tolist():
        one.add(tuple(row))
    other.extend(rows)
    one.flush()
    other.flush()
    assert single == many
    assert [len(chunk) for chunk in single] == [4, 4, 3]


COUNTER = """
from servesim.contracts.feature import Feature
from servesim.contracts.part import Part


class Count(Part):
    number = 0

    def sent(self, request, output_len, index):
        self.number += 1

    def figures(self, finished):
        return {"sent": self.number}


class Counter(Feature):
    def build(self, setup):
        return Count()

    def schema(self):
        return {"sent": {"type": "integer"}}
"""


def test_a_feature_that_acts_in_the_run_is_in_one_process(tmp_path: Path) -> None:
    (tmp_path / "count.py").write_text(COUNTER, encoding="utf-8")
    settings = {"trace": "synth:rate=5", "requests": 8, "model": "llama-3.2-1b", "gpu": "h200", "replicas": 2}
    own = {"features": [f"{tmp_path / 'count.py'}:Counter"], "conclude": False}
    assert servesim.simulate(settings, **own).summary["sent"] == 8
    with pytest.raises(UserError, match="Count observes the whole run"):
        servesim.simulate(settings, jobs=2, **own)
