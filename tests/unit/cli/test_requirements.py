"""`--require`, `--overwrite`, `--quiet`, and paths beside a scenario file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import servesim
from servesim.cli import app as cli
from servesim.cli.gate import CAPACITY_UNITS, capacity_failures, requirements
from servesim.cli.requirements import Requirement, failures
from servesim.errors import UserError
from servesim.run.beside import beside
from servesim.run.setting_names import load_settings

MODEL = ("--model", "llama-3.2-1b", "--gpu", "h200")
RUN = ["run", "--trace", "synth:rate=20,prompt=300,output=20", "--requests", "30", *MODEL]

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["servesim", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        printed = capsys.readouterr()
        return int(caught.value.code or 0), printed.out, printed.err

    return run


@pytest.mark.parametrize(
    ("text", "name", "bound"),
    [
        ("ttft_p99<=300", "ttft_p99", 300.0),
        ("ttft_p99 < 1.5s", "ttft_p99", 1500.0),
        ("slo_attainment>=99%", "slo_attainment", 0.99),
        ("slo_attainment>=0.99", "slo_attainment", 0.99),
        ("output_throughput>1e3", "output_throughput", 1000.0),
    ],
)
def test_requirements_are_read_in_units(text: str, name: str, bound: float) -> None:
    [one] = requirements([text])
    assert (one.name, one.bound) == (name, pytest.approx(bound))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ttft_p99", "write METRIC>=VALUE"),
        ("ttft_p98<=1", 'did you mean "ttft_p99"'),
        ("ttft_p99<=fast", "write METRIC>=VALUE"),
        ("ttft_p99<=5%", "the value must be a number"),
        ("output_throughput>=5s", "the value must be a number"),
        ("ttft_p99<=nan", "write METRIC>=VALUE"),
    ],
)
def test_what_is_no_requirement_is_refused(text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        requirements([text])


@pytest.mark.parametrize(("sign", "held"), [("<=", (1, 2)), ("<", (1,)), (">=", (2, 3)), (">", (3,))])
def test_bounds_belong_to_what_is_within_or_not(sign: str, held: tuple[int, ...]) -> None:
    one = Requirement("x", "x", sign, 2.0)
    assert tuple(value for value in (1, 2, 3) if one.holds(value)) == held
    assert not one.holds(None)


def test_a_run_fails_by_what_is_required_of_it_alone(call: Cli) -> None:
    assert call(*RUN, "--require", "ttft_p99<=10s")[0] == 0
    code, out, err = call(*RUN, "-q", "--require", "ttft_p99<=1", "--require", "tpot_mean<=1s")
    assert (code, out) == (1, "")
    assert err.startswith("failed: required ttft_p99<=1, it is ")
    assert len(err.splitlines()) == 1
    assert call(*RUN, "-q", "--require", "slo_attainment>=0.5")[2].strip().endswith("it has no value")


def test_an_unstable_run_fails_where_anything_is_required(call: Cli) -> None:
    crowded = [*RUN, "-q", "--rate", "80", "--requests", "600", "--scheduler", "vllm:max_num_seqs=2"]
    assert call(*crowded)[0] == 0
    code, _, err = call(*crowded, "--require", "ttft_p99<=10000s")
    assert (code, err) == (1, "failed: the queue was still growing when arrivals ended\n")


def test_a_metric_of_ones_own_may_be_required(call: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def longest(requests, summary):\n    return requests['prompt_len'].max()\n")
    own = [*RUN, "--metrics", f"{tmp_path / 'mine.py'}:longest"]
    assert call(*own, "-q", "--require", "longest<=300")[0] == 0
    assert call(*own, "-q", "--require", "longest<300")[2] == "failed: required longest<300, it is 300\n"
    assert "longest" in call(*own)[1]


def test_every_variant_of_a_comparison_must_hold(call: Cli) -> None:
    compare = ["compare", *RUN[1:], "--scheduler", "vllm,vllm:max_num_seqs=1", "--replicates", "2", "--jobs", "1", "-q"]
    code, out, err = call(*compare, "--metrics", "e2el_mean", "--require", "e2el_mean<=38ms")
    assert (code, out) == (1, "")
    assert [line.partition(": required")[0] for line in err.splitlines()] == ["failed: vllm:max_num_seqs=1"]
    assert call(*compare, "--metrics", "e2el_mean", "--require", "tpot_p99<=9")[0] == 2


def test_one_deployment_that_fulfils_everything_is_enough_for_capacity() -> None:
    known = dict.fromkeys(CAPACITY_UNITS, 1.0) | {"error": None, "values": {"ttft_p99": 200.0}}
    cheap = {**known, "label": "cheap", "verdict": "carries", "usd_per_hour": 4.0}
    dear = {**known, "label": "dear", "verdict": "carries", "usd_per_hour": 40.0}
    never = {**known, "label": "small", "verdict": "never"}
    required = requirements(["usd_per_hour<=30", "ttft_p99<=1s"], CAPACITY_UNITS)
    assert capacity_failures(required, {"rows": [never, dear, cheap]}) == []
    assert capacity_failures(required, {"rows": [never, dear]}) == [
        "small: never",
        "dear: required usd_per_hour<=30, it is 40",
    ]


@pytest.mark.parametrize(
    ("text", "value", "said"),
    [
        ("ttft_p99<=10ms", 117.227, "it is 117.227 ms"),
        ("ttft_p99<=1s", 1500.0, "it is 1500 ms"),
        ("slo_attainment>=99%", 0.964, "it is 96.4 %"),
        ("usd_per_million_tokens<=0.2", 0.21, "it is $0.21"),
        ("output_throughput>=2000", 1500.0, "it is 1500 tokens/s"),
        ("acceptance_length>=2", 1.5, "it is 1.5 tokens"),
    ],
)
def test_a_value_that_fails_is_said_in_its_unit(text: str, value: float, said: str) -> None:
    required = requirements([text])
    assert failures(required, {required[0].name: value}) == [f"required {text}, {said}"]


def test_failures_name_their_variant() -> None:
    assert failures([Requirement("x<=1", "x", "<=", 1.0)], {"x": 2.0}, "a") == ["a: required x<=1, it is 2"]


def test_a_result_of_another_scenario_is_kept(call: Cli, tmp_path: Path) -> None:
    out = ["-q", "--no-report", "--out", tmp_path / "r"]
    assert call(*RUN, *out)[0] == 0
    assert call(*RUN, *out)[0] == 0  # the same again
    before = (tmp_path / "r" / "summary.json").read_bytes()
    code, _, err = call(*RUN, "--rate", "3", *out)
    assert code == 2
    assert "contains the result of a different scenario (--overwrite replaces it)" in err
    assert (tmp_path / "r" / "summary.json").read_bytes() == before
    assert call(*RUN, "--rate", "3", *out, "--overwrite")[0] == 0
    assert (tmp_path / "r" / "summary.json").read_bytes() != before


def test_an_experiment_over_another_one_needs_a_word_and_a_resumed_one_none(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "trace": "synth:rate=20,prompt=300,output=20",
        "requests": 10,
        "model": "llama-3.2-1b",
        "gpu": "h200",
        "jobs": 1,
        "out": tmp_path / "s",
    }
    sizes = {"engine.block_size": [16, 32]}
    servesim.sweep(**given, **sizes, dtype="fp8")
    servesim.sweep(**given, **{"engine.block_size": [16, 32, 64]}, dtype="fp8")
    servesim.sweep(**given, **sizes, dtype="fp8", seed=1)  # nothing that both say differs
    with pytest.raises(
        UserError, match=r"contains a different experiment \(dtype is 'fp8' there; --overwrite replaces it\)"
    ):
        servesim.sweep(**given, **sizes, dtype="bf16")
    servesim.sweep(**given, **sizes, dtype="bf16", overwrite=True)
    pair = {**given, "scheduler": ["vllm", "sarathi"], "replicates": 2}
    with pytest.raises(UserError, match="contains a different kind of experiment"):
        servesim.compare(**pair)
    servesim.compare(**pair, overwrite=True)
    assert not (tmp_path / "s" / "sweep.json").exists()


def test_paths_in_a_scenario_file_are_relative_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    for name in ("t.csv", "mine.py", "counts.json", "card.yaml", "h200", "vllm", "terms.yaml"):
        (folder / name).write_text("")
    monkeypatch.chdir(tmp_path)
    given: dict[str, Any] = {
        "trace": "t.csv",
        "model": "llama-3.2-1b",
        "gpu": "card.yaml:usd_per_hour=1",
        "host": "terms.yaml",
        "scheduler": ["mine.py:Fair:share=0.5", "vllm"],
        "acceptance": "table:path=counts.json,k=3",
        "shape": ["mix:weight=0.5,trace=t.csv", "thin:keep=0.5"],
        "axes": {"trace": ["t.csv", "preset:x"], "gpu": ["h200", "card.yaml"]},
        "predictor": "t.csv",
    }
    assert beside(given, Path("work/s.yaml")) == {
        "trace": "work/t.csv",
        "model": "llama-3.2-1b",
        "gpu": "work/card.yaml:usd_per_hour=1",
        "host": "work/terms.yaml",
        "scheduler": ["work/mine.py:Fair:share=0.5", "vllm"],
        "acceptance": "table:path=work/counts.json,k=3",
        "shape": ["mix:weight=0.5,trace=work/t.csv", "thin:keep=0.5"],
        "axes": {"trace": ["work/t.csv", "preset:x"], "gpu": ["h200", "work/card.yaml"]},
        "predictor": "t.csv",
    }
    assert beside({"trace": "elsewhere/t.csv"}, Path("work/s.yaml")) == {"trace": "elsewhere/t.csv"}


def test_a_scenario_file_runs_from_anywhere_and_so_does_the_one_it_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "t.csv").write_text("arrival_ns,prompt_len,output_len\n0,10,5\n1000000000,10,5\n")
    (folder / "s.yaml").write_text("trace: t.csv\nmodel: llama-3.2-1b\ngpu: h200\n")
    monkeypatch.chdir(tmp_path)
    first = servesim.simulate("work/s.yaml", out="result")
    assert load_settings("result/scenario.yaml")["trace"] == "work/t.csv"
    assert servesim.simulate("result/scenario.yaml").summary == first.summary
