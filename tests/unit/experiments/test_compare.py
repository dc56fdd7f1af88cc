"""`servesim compare`: pairs, verdicts, what is written, and where two policies part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import servesim
from servesim import UserError
from servesim.cli.tables import print_compare
from servesim.experiments.compare import compare
from servesim.experiments.compare_document import _answer, _notes
from servesim.reports.export import export

WORKLOAD: dict[str, Any] = {
    "trace": "synth:rate=40,prompt=lognormal(400,1200),output=lognormal(30,80)",
    "requests": 50,
    "model": "llama-3.2-1b",
    "gpu": "h200",
    "kv": "paged",
    "jobs": 1,
}
SLOW = "vllm:max_num_seqs=3"
ORACLE = """
from servesim.policies.scheduling.vllm import Vllm
class Seer(Vllm):
    needs = frozenset({"output_len"})
"""


def rows(document: dict[str, Any], variant: str) -> dict[str, dict[str, Any]]:
    return {row["metric"]: row for row in document["rows"] if row["variant"] == variant}


def test_a_policy_that_queues_is_worse_and_its_requests_say_why(tmp_path: Path) -> None:
    frame = servesim.compare(**WORKLOAD, scheduler=["vllm", SLOW], replicates=6, out=tmp_path)
    document = frame.attrs["document"]
    row = rows(document, SLOW)["ttft_mean"]
    assert row["verdict"] == "worse"
    assert 0 < row["change_low"] < row["change"] < row["change_high"]
    assert row["p"] == pytest.approx(2 / 2**6)
    assert row["value"] / row["baseline_value"] - 1 == pytest.approx(row["change"])
    found = document["drill_down"][0]
    assert max(found["causes"], key=found["causes"].get) == "queueing"
    assert found["worst"][0]["more_ms"]["queue"] > 0
    parted = found["divergence"]
    assert parted["baseline"]["decode_count"] + parted["baseline"]["prefill_pieces"] > 3
    assert parted["variant"]["decode_count"] + parted["variant"]["prefill_pieces"] == 3
    assert document["ranking"]["order"] == ["vllm", SLOW]
    assert f"{SLOW} has" in document["headline"][0]
    assert "higher TTFT p99 than vllm" in document["headline"][0]


def test_the_header_says_which_variants_plan_synchronously_where_others_plan_ahead(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def header(*schedulers: str, **settings: Any) -> str:
        workload = {**WORKLOAD, "requests": 20, **settings}
        print_compare(compare(**workload, scheduler=list(schedulers), replicates=2).attrs["document"], None)
        line, found, _ = " ".join(capsys.readouterr().out.split()).partition(
            " schedule synchronously while the others "
        )
        return found and line.rpartition("warning: ")[2].replace(" ", "")

    file = tmp_path / "late.py"
    file.write_text(
        "from servesim.policies.scheduling.vllm import Vllm\nclass Late(Vllm):\n    supports = frozenset()\n"
    )
    late = f"{file}:Late"
    said = header("vllm", late, "continuous")
    assert said.endswith("late.py:Late,continuous")
    assert header("vllm", SLOW) == ""
    assert header("continuous", "static") == ""
    assert header("vllm", "continuous", engine={"async_scheduling": False}) == ""


def test_all_variants_of_a_replicate_meet_the_same_trace(tmp_path: Path) -> None:
    compare(**WORKLOAD, scheduler=["vllm", SLOW], kv_dtype=["bf16", "fp8"], replicates=2, out=tmp_path)
    document = json.loads((tmp_path / "comparison.json").read_text())
    assert [v["label"] for v in document["variants"]][:2] == ["vllm / kv_dtype=bf16", "vllm / kv_dtype=fp8"]
    digests = [
        [json.loads((tmp_path / "cells" / a / "summary.json").read_text())["provenance"]["trace"] for a in v["cells"]]
        for v in document["variants"]
    ]
    assert all(d == digests[0] for d in digests)
    assert digests[0][0] != digests[0][1]


def test_the_same_question_gives_the_same_bytes_and_computes_nothing_twice(tmp_path: Path) -> None:
    computed: list[bool] = []
    for out in (tmp_path / "a", tmp_path / "b", tmp_path / "a"):
        asked = WORKLOAD | {"scheduler": ["vllm", SLOW], "replicates": 3, "on_progress": None}
        asked["on_progress"] = lambda p: computed.append(p.computed)
        compare(**asked, out=out)
    assert computed == [True] * 12 + [False] * 6
    for name in ("comparison.json", "comparison.parquet"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_setting_without_effect_is_identical() -> None:
    frame = compare(**WORKLOAD, scheduler=["vllm", "vllm:max_num_seqs=512"], replicates=2)
    assert set(frame[frame["variant"] != "vllm"]["verdict"]) == {"identical"}
    document = frame.attrs["document"]
    assert document["drill_down"][0]["divergence"] is None
    assert "equal in every request, so the difference has no effect" in document["headline"][0]


BROKEN = """
from servesim.policies.scheduling.vllm import Vllm


class Broken(Vllm):
    def plan(self, now):
        raise ValueError("no plan today")
"""


def test_a_variant_that_cannot_run_is_named_and_the_rest_compared(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    none = f"{tmp_path}/broken.py:Broken"
    frame = compare(**WORKLOAD, scheduler=["vllm", none, SLOW], replicates=2)
    document = frame.attrs["document"]
    assert rows(document, none)["ttft_mean"]["verdict"] == "failed"
    assert document["ranking"]["failed"] == [none]
    assert any("no plan today" in note for note in document["warnings"])
    assert rows(document, SLOW)["ttft_mean"]["change"] is not None


def test_an_unstable_variant_is_named_and_not_ranked() -> None:
    asked = WORKLOAD | {"trace": "synth:rate=100,prompt=400,output=30", "requests": 120}
    frame = compare(**asked, scheduler=["vllm", "vllm:max_num_seqs=1"], replicates=2)
    document = frame.attrs["document"]
    assert rows(document, "vllm:max_num_seqs=1")["ttft_p99"]["verdict"] == "unstable"
    assert rows(document, "vllm:max_num_seqs=1")["output_throughput"]["change"] < 0
    assert document["ranking"]["unstable"] == ["vllm:max_num_seqs=1"]
    assert document["ranking"]["order"] == ["vllm"]
    assert any("unstable in 2 of 2 runs" in note for note in document["warnings"])


def test_an_unstable_first_variant_is_no_baseline_unless_it_is_named() -> None:
    asked = WORKLOAD | {"trace": "synth:rate=100,prompt=400,output=30", "requests": 120, "replicates": 2}
    asked |= {"scheduler": ["vllm:max_num_seqs=1", "vllm"], "metrics": "ttft_p99"}
    assert compare(**asked).attrs["document"]["baseline"] == "vllm"
    assert compare(**asked, baseline="vllm:max_num_seqs=1")["verdict"].tolist() == ["unstable", "unstable"]


def test_every_row_shows_the_gap_to_the_oracle(tmp_path: Path) -> None:
    (tmp_path / "seer.py").write_text(ORACLE)
    seer = f"{tmp_path / 'seer.py'}:Seer"
    document = compare(**WORKLOAD, scheduler=[SLOW, seer], replicates=2).attrs["document"]
    slow, oracle = rows(document, SLOW)["ttft_mean"], rows(document, seer)["ttft_mean"]
    assert slow["gap_to_oracle"] == pytest.approx(slow["value"] / oracle["value"] - 1)
    assert oracle["gap_to_oracle"] == 0
    assert [v["oracle"] for v in document["variants"]] == [False, True]


def test_a_recorded_trace_is_cut_into_windows(tmp_path: Path) -> None:
    lines = [f'{{"timestamp":{20 * i},"input_length":{200 + 7 * i % 50},"output_length":9}}' for i in range(61)]
    (tmp_path / "t.jsonl").write_text("\n".join(lines) + "\n")
    asked = WORKLOAD | {"trace": str(tmp_path / "t.jsonl"), "requests": None}
    document = compare(**asked, scheduler=["vllm", SLOW], replicates=3).attrs["document"]
    assert document["replicates"]["kind"] == "windows"
    assert document["replicates"]["changes"] == [{"skip": s, "requests": 20} for s in (0, 20, 40)]
    asked["requests"] = 25
    document = compare(**asked, speculation=["none", "eagle3:k=2"], window=12).attrs["document"]
    assert document["replicates"]["changes"] == [{"skip": 12 * i, "requests": 12} for i in range(2)]
    row = rows(document, "eagle3:k=2")["ttft_mean"]
    served = {key: value for key, value in asked.items() if key != "jobs"}
    alone = servesim.simulate(served, speculation="eagle3:k=2")
    assert row["value"] == pytest.approx(alone.summary["latency_ms"]["ttft"]["mean"])
    with pytest.raises(UserError, match="window applies only to recorded traces"):
        compare(**WORKLOAD, scheduler=["vllm", SLOW], window=12)


def test_one_run_is_compared_by_blocks_of_its_requests() -> None:
    asked = WORKLOAD | {"requests": 200}
    document = compare(**asked, scheduler=["vllm", SLOW], replicates=1, metrics="ttft_mean").attrs["document"]
    row = rows(document, SLOW)["ttft_mean"]
    assert document["replicates"]["kind"] == "blocks"
    assert row["verdict"] == "worse"
    assert row["change_low"] < row["change"] < row["change_high"]


def test_scenario_files_are_variants_named_by_their_files(tmp_path: Path) -> None:
    for name, seqs in (("roomy", 64), ("tight", 3)):
        (tmp_path / f"{name}.yaml").write_text(
            f"trace: {WORKLOAD['trace']}\nrequests: 40\nmodel: llama-3.2-1b\ngpu: h200\n"
            f"scheduler: {{name: vllm, max_num_seqs: {seqs}}}\n"
        )
    files = [tmp_path / "roomy.yaml", tmp_path / "tight.yaml"]
    document = compare(*files, replicates=2, jobs=1, baseline="tight").attrs["document"]
    assert [v["label"] for v in document["variants"]] == ["tight", "roomy"]
    (tmp_path / "tight.yaml").write_text((tmp_path / "tight.yaml").read_text().replace("40", "30"))
    with pytest.raises(UserError, match="replay different workloads"):
        compare(*files)


@pytest.mark.medium
def test_a_measured_run_is_replayed_and_compared_request_by_request(tmp_path: Path) -> None:
    settings = {k: v for k, v in WORKLOAD.items() if k != "jobs"} | {"requests": 600}
    servesim.simulate(settings, out=tmp_path / "run")
    bench = tmp_path / "bench.json"
    export(tmp_path / "run", "vllm-bench", bench)
    scenario = {k: v for k, v in settings.items() if k in ("model", "gpu")}
    frame = compare(scenario, bench, scheduler=["vllm", SLOW], jobs=1, out=tmp_path / "c")
    document = frame.attrs["document"]
    assert [v["label"] for v in document["variants"]] == ["measured", "vllm", SLOW]
    # the measured run is a simulated one, so its replay differs by the rounding of the export at most
    assert {row["verdict"] for row in rows(document, "vllm").values()} <= {"equivalent", "identical"}
    assert rows(document, SLOW)["ttft_mean"]["verdict"] == "too slow"
    with pytest.raises(UserError, match="remove it, because the measured run determines the requests"):
        compare(scenario, bench, rate=3)
    with pytest.raises(UserError, match=r"bench\.json has only ttft, tpot, e2el, ntpot"):
        compare(scenario, bench, metrics="output_throughput")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"scheduler": "vllm"}, "several values"),
        ({"rate": "1,2"}, r"different workloads \(rate: 1 and 2\)"),
        ({"metrics": "ttft_p98"}, 'did you mean "ttft_p99"'),
        ({"metrics": "slo_attainment"}, "needs an SLO"),
        ({"warmup": 0.8, "cooldown": 0.4}, "shares of the arrivals"),
        ({"baseline": "sglang"}, "choose from"),
        ({"replicates": 0}, "from 1 to 10,000"),
        ({"interval": "wald"}, "interval is 'wald'"),
        ({"executor": "slurm"}, "local, ray"),
        ({"jobs": 0}, "at least 1"),
    ],
)
def test_questions_without_an_answer_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        compare(**(WORKLOAD | {"scheduler": f"vllm,{SLOW}"} | changes))


def test_what_misses_the_slo_is_said_before_what_is_better() -> None:
    def headline(slo: str, **more: Any) -> list[str]:
        found = servesim.compare(**WORKLOAD, scheduler=["vllm", SLOW], replicates=2, slo=slo, **more)
        return list(found.attrs["document"]["headline"])

    first, second = headline("ttft:1,tpot:0.01")
    assert first == (
        f"no variant meets the SLO (99 % of requests within TTFT 1 ms and TPOT 0.01 ms): vllm 0.0 %; {SLOW} 0.0 %"
    )
    assert second.startswith(f"{SLOW} has")
    first, second = headline("ttft:p90<60ms")
    assert first.startswith(f"{SLOW} misses the SLO (90 % of requests within TTFT 60 ms): {SLOW} ")
    assert len(headline("ttft:1e6")) == 1
    assert len(servesim.compare(**WORKLOAD, scheduler=["vllm", SLOW], replicates=2).attrs["document"]["headline"]) == 1


class Runs(list[int]):
    kind, notes, changes = "seeds", (), ()


@pytest.mark.parametrize(("count", "noted"), [(1, False), (2, True), (5, True), (6, False)])
def test_fewer_than_six_replicates_are_said_to_prove_nothing(count: int, noted: bool) -> None:
    notes = _notes([], Runs(range(count)))  # type: ignore[arg-type]
    assert (
        f"{count} replicates: a sign-flip test cannot reach p = 0.05 with fewer than 6; add --replicates 6" in notes
    ) == noted
    assert any(note.startswith("each variant ran once") for note in notes) == (count == 1)


def test_an_answer_names_the_metrics_that_say_the_opposite() -> None:
    verdicts = [("ttft_p99", "worse"), ("tpot_mean", "better"), ("e2el_p99", "better"), ("ttft_mean", "undecided")]
    rows = [{"variant": "b", "metric": metric, "verdict": verdict} for metric, verdict in verdicts]
    order = {"metric": "ttft_p99", "order": ["a", "b"], "unstable": []}

    def answer(which: list[dict[str, str]]) -> str:
        return _answer(order, rows[:1], ["b has 3 % higher TTFT p99 than a: worse"], which, "a")

    assert answer(rows) == "b has 3 % higher TTFT p99 than a: worse, but better in TPOT mean, E2E p99."
    assert answer([rows[0], rows[3]]) == "b has 3 % higher TTFT p99 than a: worse."
    rows[0]["verdict"] = "undecided"
    rows[3]["verdict"] = "worse"
    assert answer(rows).endswith(", but better in TPOT mean, E2E p99 and worse in TTFT mean.")


def test_an_answer_says_that_the_baseline_alone_is_unstable() -> None:
    rows = [{"variant": name, "metric": "ttft_p99", "verdict": "unstable"} for name in ("b", "c")]
    order = {"metric": "ttft_p99", "order": ["c", "b"], "unstable": ["a"]}
    assert _answer(order, rows, ["", ""], rows, "a") == (
        "The queue of the baseline, a, grows without bound, but the queue of c, b does not."
    )


def test_an_answer_does_not_deny_a_better_policy_behind_the_baseline() -> None:
    rows = [{"variant": "b", "metric": "ttft_p99", "verdict": "better"}]
    rows.append({"variant": "c", "metric": "ttft_p99", "verdict": "undecided"})
    order = {"metric": "ttft_p99", "order": ["a", "b", "c"], "unstable": []}
    assert _answer(order, rows, ["", ""], rows, "a").endswith("by paired changes b is better.")
