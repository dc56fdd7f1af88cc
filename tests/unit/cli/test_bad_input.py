"""Bad input on the command line is one clear line and exit code 2, whatever is bad about it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servesim.cli import app as cli
from servesim.errors import UserError
from servesim.parsing import listed, names, pairs, whole_numbers

SMALL = ["--model", "llama-3.2-1b", "--gpu", "h200", "--requests", "3"]
RUN = ["run", "--trace", "synth:rate=20,prompt=30,output=2", *SMALL]
SWEEP = ["sweep", "--trace", "synth:rate=20,prompt=30,output=2", "--jobs", "1", *SMALL]
COMPARE = ["compare", *SWEEP[1:], "--kv", "paged,prefix-hash", "--replicates", "2"]
INSPECT = ["trace", "inspect"]
SHAPE = ["trace", "inspect", "synth:rate=1", "--requests", "9", "--shape"]
ROOFLINE = ["roofline", "--model", "llama-3.2-1b", "--gpu", "h100"]
PROFILE = ["calibrate", "profile", "--model", "tiny-llama", "--out", "t"]


def said(arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that refuses a command."""
    monkeypatch.setattr(sys, "argv", ["servesim", *arguments])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    printed = capsys.readouterr()
    assert (caught.value.code, printed.out) == (2, "")
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1, printed.err
    return printed.err


CASES: dict[str, list[tuple[list[str], str]]] = {
    "a directory is no page": [
        ([*RUN, "--out", "r.html"], "--out r.html: must be a directory, such as r"),
        ([*COMPARE, "--out", "c.html"], "--out c.html: must be a directory, such as c"),
        (["accuracy", "--out", "score.html"], "--out score.html: must be a directory, such as score"),
    ],
    "a boolean is no number": [
        ([*RUN, "--set", "scheduler.max_num_seqs=true"], "max_num_seqs = 'true'"),
        ([*RUN, "--set", "speculation=eagle3", "--set", "speculation.k=true"], "k = 'true'"),
        ([*RUN, "--set", "rate=true"], "rate is True"),
        ([*RUN, "--set", "seed=false"], "seed is 'false'"),
        ([*RUN, "--set", "engine.block_size=true"], "engine.block_size is 'true'"),
        ([*RUN, "--set", "engine.max_model_len=true"], "engine.max_model_len is 'true'"),
        ([*RUN, "--set", "clients.timeout_s=true"], "clients.timeout_s is 'true'"),
        ([*RUN, "--set", "slo.ttft=true"], "slo.ttft is 'true'"),
        ([*RUN, "--set", "slo_classes={a: {ttft: true}}"], "slo_classes.a.ttft is 'true'"),
        ([*SWEEP, "--rate", "2,true"], "rate is True"),
        ([*SHAPE, "label:n=true"], "n = 'true'"),
    ],
    "a number is finite": [
        ([*RUN, "--rate", "nan"], "rate is 'nan'"),
        ([*RUN, "--shape", "ramp:start=nan,end=1"], "start is nan but must be a finite number"),
        ([*RUN, "--shape", "ramp:start=1,end=inf"], "end is inf but must be a finite number"),
        ([*SHAPE, "window:start=-inf"], "start is -inf"),
        ([*COMPARE, "--margin", "nan"], "margin is nan"),
        ([*COMPARE, "--margin", "-1"], "margin is -1"),
        (["capacity", *SWEEP[1:], "--slo", "ttft:500", "--rate", "inf"], "no deployment can sustain an infinite rate"),
        ([*PROFILE, "--budget-s", "nan"], "--budget-s is nan"),
        ([*RUN, "--set", "gpu.flops.bf16=1e-300"], "gpu.flops.bf16 is '1e-300' but must be at least 1e+06 per second"),
        ([*RUN, "--set", "gpu.bandwidth=9"], "gpu.bandwidth is '9' but must be at least 1e+06 per second"),
        ([*RUN, "--offload", "vllm:cpu=1e300GiB"], "cpu: '1e300GiB' is more than 1e18 bytes"),
        ([*RUN, "--trace", "synth:rate=5e-324", "--requests", "5"], "the rate is too low"),
        ([*PROFILE, "--max-drift", "inf"], "--max-drift is inf"),
    ],
    "nothing stands twice": [
        ([*RUN, "--scheduler", "vllm:max_num_seqs=4,max_num_seqs=8"], "max_num_seqs is specified twice"),
        ([*RUN, "--shape", "thin:keep=0.5,keep=0.4"], "keep is specified twice"),
        ([*SWEEP, "--rate", "2,2.0"], "is specified twice"),
        ([*SWEEP, "--metrics", "ttft_p99,ttft_p99"], "ttft_p99 is specified twice"),
        ([*INSPECT, "synth:prompt=lognormal(p50=5,p50=6,p95=9)"], "p50 is specified twice"),
        ([*INSPECT, "synth:prompt=lognormal(5,p50=6,p95=9)"], "given both by position and by name"),
        ([*ROOFLINE, "--batch", "1,1"], "1 is specified twice"),
        (["size", "llama-3.1-8b", "--tp", "2,2"], "2 is specified twice"),
    ],
    "no value is empty": [
        ([*SWEEP, "--rate", "2,,"], "rate: '2,,' has a comma with no value next to it"),
        ([*SWEEP, "--rate", ","], "rate: specify a value"),
        ([*SWEEP, "--scheduler", "vllm,"], "scheduler: 'vllm,' has a comma"),
        ([*SWEEP, "--metrics", "ttft_p99,"], "metrics: 'ttft_p99,' has a comma"),
        ([*SWEEP, "--best-by", ""], "metrics: specify a value"),
        ([*COMPARE, "--rank-by", ""], "unknown metric ''"),
        ([*RUN, "--scheduler", "vllm:max_num_seqs=4,"], "has a comma with no value next to it"),
        ([*RUN, "--slo", "ttft:500,,tpot:50"], "slo: 'ttft:500,,tpot:50' has a comma"),
        ([*RUN, "--slo", ""], "slo is '': must not be empty"),
        (["run", "--trace", "", *SMALL], "trace is '': must not be empty"),
        ([*RUN, "--kernel-tables", ""], "kernel_tables is '': must not be empty"),
        ([*INSPECT, ""], "no trace is specified"),
        ([*INSPECT, "synth:rate=2,"], "synth: 'rate=2,' has a comma"),
        ([*INSPECT, "synth:prompt=lognormal(512,,3)"], "has a comma"),
        ([*ROOFLINE, "--batch", "1,,2"], "--batch: '1,,2' has a comma"),
        (["size", "llama-3.1-8b", "--gpu", "h100,,h200"], "--gpu: 'h100,,h200' has a comma"),
        (["size", ""], "no model is specified"),
        (["policies", ""], "unknown policy ''"),
        (["reproduce", ""], "unknown experiment ''"),
    ],
    "a number is of a sensible size": [
        ([*RUN, "--speculation", "eagle3:k=99999999"], "k is 99999999 but must be from 1 to 1,024"),
        ([*RUN, "--set", "skip=99999999999999999999"], "skip is 99999999999999999999"),
        ([*SWEEP, "--replicates", "0"], "replicates is 0 but must be from 1 to 10,000"),
        ([*COMPARE, "--replicates", "99999999999999999999"], "must be from 1 to 10,000"),
        ([*INSPECT, "synth:rate=1", "--requests", "99999999999999"], "must be at most 100,000,000"),
        ([*INSPECT, "synth:arrivals=gamma(cv=1e-300)"], "must be from 0.001 to 1000"),
        (
            [*INSPECT, "synth:arrivals=mmpp(ratio=2,on=1e-9,off=1e-9)"],
            "'on' and 'off' are too short: there would be more than 10,000,000 of each",
        ),
        ([*INSPECT, "synth:prefix=shared(groups=1e30,length=3)"], "at most 10,000,000 groups"),
        ([*INSPECT, "synth:turns=chat(turns=5,think=1e300)"], "'think' must be from 0 to 10,000,000 s"),
        ([*SHAPE, "arrive:rate=1e-300"], "shape arrive:rate=1e-300: times would exceed 146 years"),
        ([*SHAPE, "stretch:factor=9e5", "--shape", "stretch:factor=9e5"], "times would exceed 146 years"),
        ([*SHAPE, "repeat:times=2,period=1e300"], "period is 1e+300"),
        ([*SHAPE, "window:start=-5,end=3"], "start is -5"),
        ([*SHAPE, "cap:tokens=9999999999999999"], "must be from 1 to"),
        ([*SHAPE, "label:share=2"], "share is 2 but must be from 0 to 1"),
        ([*SHAPE, "cancel:share=0.5,after=-1"], "after is -1"),
        ([*SHAPE, "cancel:share=0.5,after=1e300"], "after is 1e+300"),
        (["size", "llama-3.1-8b", "--set", "num_hidden_layers=99999999999999"], "must be at most 10,000"),
        ([*ROOFLINE, "--batch", "9" * 30], "must be whole numbers above 0"),
        ([*PROFILE, "--max-tokens", "0"], "--max-tokens is 0 but must be above 0"),
    ],
    "a setting that changes nothing is refused": [
        (["roofline", "result", "--batch", "1"], "--batch has no effect: a result directory has its own steps"),
        ([*ROOFLINE, "--out", "x.png"], "must end in .html (a page) or .svg"),
    ],
}


@pytest.mark.medium
@pytest.mark.parametrize(
    ("arguments", "told"),
    [pytest.param(*case, id=f"{claim}: {case[1]}") for claim, cases in CASES.items() for case in cases],
)
def test_it_is_refused(
    arguments: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert told in said(arguments, monkeypatch, capsys)
    assert list(tmp_path.iterdir()) == []


def test_a_whole_number_may_be_written_with_a_point_and_a_boolean_as_a_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = []
    for settings in (["max_num_seqs=2", "async_scheduling=true"], ["max_num_seqs=2.0", "async_scheduling=1"]):
        assigned = [f"--set={where}.{what}" for where, what in zip(("scheduler", "engine"), settings, strict=True)]
        monkeypatch.setattr(sys, "argv", ["servesim", *RUN, *assigned])
        assert cli._guarded() == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]


PART = st.text(st.characters(exclude_characters=",()", exclude_categories=("Z", "C")), min_size=1)


@given(st.lists(PART, min_size=1))
def test_a_list_has_the_parts_it_was_written_with(parts: list[str]) -> None:
    assert listed("x", " , ".join(parts)) == parts


@given(st.lists(PART), st.lists(PART))
def test_a_list_with_an_empty_part_is_refused_wherever_that_stands(before: list[str], after: list[str]) -> None:
    with pytest.raises(UserError, match=r"^x: "):
        listed("x", ",".join([*before, "", *after]))


def test_commas_in_brackets_belong_to_the_part() -> None:
    assert listed("x", "a(1,b(2,3)),c") == ["a(1,b(2,3))", "c"]
    for text in ("a(1", "a)1(", "a(1))"):
        with pytest.raises(UserError, match="x: brackets do not match"):
            listed("x", text)


def test_pairs_are_split_at_the_first_equals_sign() -> None:
    assert pairs("x", "a=1, b = p=q,c=") == {"a": "1", "b": "p=q", "c": ""}
    assert pairs("x", "") == {}
    for text, told in (("a", "'a' must have the form key=value"), ("a=1,a=2", "a is specified twice")):
        with pytest.raises(UserError, match=told):
            pairs("x", text)


def test_names_and_numbers_stand_once() -> None:
    assert names("x", "b, a") == ["b", "a"]
    assert whole_numbers("x", "8, 16") == [8, 16]
    for text in ("0", "-1", "1.0", "two", "²", "1_000", "1,1"):
        with pytest.raises(UserError):
            whole_numbers("x", text)
