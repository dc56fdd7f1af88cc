"""Clients that others wrote: stand-ins on PATH take their flags and leave their files, or fail in every way."""

from __future__ import annotations

import asyncio
import csv
import json
import sys
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servesim.cli import app as cli
from servesim.errors import UserError
from servesim.experiments.measure.answers import Target
from servesim.experiments.measure.clients import PROGRAMS, Client, aiperf_answers, vllm_bench_answers
from servesim.experiments.measure.loops import Point, means
from servesim.experiments.measure.wire import Address
from tests.support.stub_server import Stub, serving

FAKE = '''#!{python}
"""Takes the flags of both clients and leaves their files: TTFT 50 ms, 10 ms a token, a request every 100 ms."""
import json, sys, time
from pathlib import Path
words, wrong = sys.argv[1:], {wrong!r}
given = dict(zip(words, words[1:]))
Path({told!r}).write_text(json.dumps(words))
if wrong == "fails":
    print("loading")
    print("ValueError: tokenizer stub/tiny was not found", file=sys.stderr)
    sys.exit(3)
if wrong == "hangs":
    time.sleep(600)
aiperf = words[0] == "profile"
folder = Path(given["--output-artifact-dir" if aiperf else "--result-dir"])
count = int(given["--request-count" if aiperf else "--num-prompts"])
mean = int(given["--osl" if aiperf else "--random-output-len"])
lengths = [mean + (i % 3) - 1 for i in range(count)]
if wrong == "nothing":
    sys.exit(0)
if aiperf:
    rows = [
        {{
            "metadata": {{"benchmark_phase": "profiling", "request_start_ns": 10**18 + i * 10**8}},
            "metrics": {{
                "time_to_first_token": {{"value": 50.0, "unit": "ms"}},
                "request_latency": {{"value": 50.0 + 10.0 * (n - 1), "unit": "ms"}},
                "usage_prompt_tokens": {{"value": 57, "unit": "tokens"}},
                "usage_completion_tokens": {{"value": n, "unit": "tokens"}},
                "inter_chunk_latency": {{"value": [10.0] * (n - 1), "unit": "ms"}},
            }},
        }}
        for i, n in enumerate(lengths)
    ]
    text = "\\n".join(map(json.dumps, rows))
else:
    found = {{
        "completed": count, "input_lens": [57] * count, "output_lens": lengths, "ttfts": [0.05] * count,
        "itls": [[0.01] * (n - 1) for n in lengths], "errors": [""] * count,
        "start_times": [5.0 + 0.1 * i for i in range(count)],
    }}
    text = json.dumps(found)
if wrong == "other":
    text = '{{"schema": "another"}}'
if wrong == "empty":
    text = "" if aiperf else json.dumps({{name: [] for name in ("input_lens", "output_lens", "ttfts", "itls")}})
(folder / ("profile_export.jsonl" if aiperf else given["--result-filename"])).write_text(text)
'''
POINT = Point("ladder", 2, 64, 20, 6)
NAMES = tuple(PROGRAMS)


@pytest.fixture
def told(tmp_path: Path) -> Path:
    """Where a stand-in leaves the words it was called with."""
    return tmp_path / "told.json"


def installed(name: str, told: Path, patch: pytest.MonkeyPatch, wrong: str = "") -> None:
    """Put a stand-in, and nothing else, on PATH."""
    folder = told.parent / "bin"
    folder.mkdir()
    program = folder / PROGRAMS[name]
    program.write_text(FAKE.format(python=sys.executable, told=str(told), wrong=wrong))
    program.chmod(0o755)
    patch.setenv("PATH", str(folder))


def table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def servesim(patch: pytest.MonkeyPatch, *arguments: str) -> int:
    patch.setattr(sys, "argv", ["servesim", *arguments])
    return cli._guarded()


@pytest.mark.parametrize("name", NAMES)
def test_a_client_is_told_the_loop_and_its_file_becomes_the_cell(
    name: str, told: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(name, told, monkeypatch)
    out = tmp_path / "out"
    options = ["--idle", "", "--clients", "2", "--saturated", "0", "--output", "20", "--prompt", "64", "--repeats", "1"]
    with serving(Stub()) as stub:
        code = servesim(
            monkeypatch, "measure", stub.url, "--gpu", "h100", "--out", str(out), "--client", name, *options
        )
    assert code == 0
    assert len(stub.seen) == 2  # what wakes the server up; all else the client sends
    words = json.loads(told.read_text())
    given = dict(pairwise(words))
    aiperf = name == "aiperf"
    assert given["--url" if aiperf else "--base-url"] == stub.url
    assert given["--isl" if aiperf else "--random-input-len"] == "58"  # 0.9 of 64
    assert given["--osl" if aiperf else "--random-output-len"] == "18"
    assert float(given["--random-range-ratio"]) == pytest.approx(1 / 9, abs=1e-6)  # from 0.8 to 1.0 of the nominal
    assert given["--concurrency" if aiperf else "--max-concurrency"] == "2"
    assert given["--request-count" if aiperf else "--num-prompts"] == "40"
    (cell,) = table(out / "cells.csv")
    assert float(cell["silicon_ttft_ms"]) == pytest.approx(50.0)
    assert float(cell["silicon_tpot_ms"]) == pytest.approx(10.0)
    assert (cell["batch_size"], cell["requests"], cell["isl"], cell["osl"]) == ("2", "40", "63", "20")
    rows = table(next((out / "runs").iterdir()))
    assert [float(row["send_time_us"]) for row in rows[:3]] == pytest.approx([0.0, 1e5, 2e5], abs=1.0)
    notes = json.loads((out / "server_config.json").read_text())["notes"]
    assert any(note.startswith(f"requests were sent by {name}") for note in notes)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("fails", "exit code 3: 'ValueError: tokenizer stub/tiny was not found'"),
        ("nothing", "it succeeded but wrote no "),
        ("other", "not a"),
        ("empty", "it has no requests"),
    ],
)
def test_a_client_that_fails_is_one_line_and_nothing_is_written(
    name: str,
    wrong: str,
    words: str,
    told: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    installed(name, told, monkeypatch, wrong)
    with serving(Stub()) as stub:
        code = servesim(
            monkeypatch, "measure", stub.url, "--gpu", "h100", "--out", str(tmp_path / "out"), "--client", name
        )
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert (code, line.startswith(f"error: --client {name}: ")) == (2, True)
    assert words in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", NAMES)
def test_a_client_that_is_not_there_is_one_line_before_anything_is_asked(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    code = servesim(
        monkeypatch, "measure", "http://127.0.0.1:9", "--gpu", "h100", "--out", str(tmp_path / "o"), "--client", name
    )
    (line,) = capsys.readouterr().err.splitlines()
    assert code == 2
    assert f"{PROGRAMS[name]} is not on PATH" in line


def test_unknown_clients_and_a_tokenizer_for_none_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["measure", "http://127.0.0.1:9", "--gpu", "h100", "--out", str(tmp_path / "o")]
    assert servesim(monkeypatch, *where, "--client", "aiprf") == 2
    assert "aiperf" in capsys.readouterr().err
    assert servesim(monkeypatch, *where, "--tokenizer", "gpt2") == 2
    assert "--client own uses the server's token counts" in capsys.readouterr().err


def test_a_client_that_hangs_ends_and_so_does_what_it_started(told: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed("aiperf", told, monkeypatch, "hangs")
    client = Client.find("aiperf", "stub/tiny")
    with pytest.raises(UserError, match="did not finish within 1 s"):
        asyncio.run(client._run([client.program, "profile"], 1.0))


def test_a_key_is_never_among_the_words_of_a_command(told: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed("vllm-bench", told, monkeypatch)
    target = Target(Address.parse("http://127.0.0.1:9", "secret"), "m")
    client = Client.find("vllm-bench", "m", "secret")
    assert "secret" not in " ".join(client.command(target, POINT, 0, 9.0, told.parent))
    monkeypatch.setenv("PATH", str(told.parent))
    (told.parent / "aiperf").write_text("")
    (told.parent / "aiperf").chmod(0o755)
    with pytest.raises(UserError, match="others can read"):
        Client.find("aiperf", "m", "secret")


def record(**metrics: Any) -> dict[str, Any]:
    usual = {
        "time_to_first_token": 150.0,
        "request_latency": 650.0,
        "input_sequence_length": 128,
        "output_sequence_length": 26,
    }
    given = {name: value for name, value in {**usual, **metrics}.items() if value is not None}
    return {
        "metadata": {"benchmark_phase": "profiling", "request_start_ns": 1795397610742778036},
        "metrics": {name: {"value": value, "unit": ""} for name, value in given.items()},
        "error": None,
    }


def test_records_of_aiperf_are_read_by_the_servers_counts_and_warm_ups_are_left_out() -> None:
    warm = record() | {"metadata": {"benchmark_phase": "warmup", "request_start_ns": 1}}
    text = "\n".join(map(json.dumps, [warm, record(), record(usage_prompt_tokens=135, usage_completion_tokens=11)]))
    first, second = aiperf_answers(text, 20)
    assert means([first]) == pytest.approx((150.0, 20.0))
    assert (first.prompt_tokens, first.output_tokens, first.asked) == (128, 26, 20)
    assert (second.prompt_tokens, second.output_tokens) == (135, 11)
    assert second.output_tokens < second.asked  # a note says that the server ends answers early


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "line 1: must be a JSON object"),
        ("[1]", "line 1: must be a JSON object"),
        ("{}", "not an AIPerf record"),
        (json.dumps(record() | {"error": {"message": "HTTP 500"}}), "a request failed: 'HTTP 500'"),
        (json.dumps(record(time_to_first_token=None)), "no time_to_first_token"),
        (json.dumps(record(request_latency="1")), "must be a number"),
        (json.dumps(record(request_latency=100.0)), "these times are impossible"),
        (json.dumps(record(output_sequence_length=0)), "these times are impossible"),
        (json.dumps(record(inter_chunk_latency=[])), "in one piece"),
    ],
)
def test_other_records_than_those_of_aiperf_are_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        [*aiperf_answers(text, 1)]


BENCH: dict[str, Any] = {
    "input_lens": [100, 90],
    "output_lens": [3, 1],
    "ttfts": [0.1, 0.2],
    "itls": [[0.01, 0.03], []],
}


def test_a_result_of_vllm_bench_is_read_with_and_without_times_of_sending() -> None:
    first, second = vllm_bench_answers(json.dumps(BENCH | {"start_times": [7.0, 7.5]}), 1)
    assert (first.sent_ns, first.first_ns, first.last_ns) == (7_000_000_000, 7_100_000_000, 7_140_000_000)
    assert (second.prompt_tokens, second.output_tokens, second.chunks) == (90, 1, 1)
    assert means([first, second]) == pytest.approx((150.0, 20.0))
    assert [answer.sent_ns for answer in vllm_bench_answers(json.dumps(BENCH), 1)] == [0, 0]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"itls": None}, "itls is missing"),
        ({"ttfts": [0.1]}, "have different lengths"),
        ({"errors": ["", "Traceback: 500"]}, "1 requests failed: 'Traceback: 500'"),
        ({"output_lens": [3, 0]}, "1 requests failed: an answer without tokens"),
        ({"ttfts": [0.1, "soon"]}, "ttft is '?soon"),
        ({"ttfts": [0.1, float("nan")]}, "must be a JSON object"),
        ({"itls": [[0.01], 3]}, "not a list of times"),
        ({"itls": [[], []]}, "in one piece"),
    ],
)
def test_other_results_than_those_of_vllm_bench_are_refused_in_words(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        [*vllm_bench_answers(json.dumps(BENCH | changed), 1)]


@given(st.text(max_size=200) | st.dictionaries(st.sampled_from(list(BENCH)), st.lists(st.floats())).map(json.dumps))
def test_whatever_a_file_holds_is_read_or_refused(text: str) -> None:
    for read in (aiperf_answers, vllm_bench_answers):
        with suppress(UserError):
            assert not [*read(text, 1)]
