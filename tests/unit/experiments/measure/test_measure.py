"""A stub with known delays is measured; servers that are dead, slow or lying are one line."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from servesim.cli import app as cli
from servesim.errors import UserError
from servesim.experiments.accuracy.reading import read
from servesim.experiments.accuracy.recipes import recipe
from servesim.experiments.measure.loops import means
from servesim.experiments.measure.study import Measurement, Plan, measure
from servesim.experiments.measure.wire import Address
from servesim.experiments.recording_formats import read_folder
from tests.support.stub_server import STREAMS, WRONG, Stub, serving
from tests.support.virtual_time import in_virtual_time

SMALL = Plan(idle=(64,), clients=(), saturated=0, prompt=64, output=8, idle_requests=2, repeats=1)


NOWHERE = "http://stub:80"


def measured(stub: Stub, plan: Plan = SMALL, **more: object) -> Measurement:
    return asyncio.run(measure(Address.parse(stub.url), plan, **more))  # type: ignore[arg-type]


def servesim(patch: pytest.MonkeyPatch, *arguments: str) -> int:
    patch.setattr(sys, "argv", ["servesim", *arguments])
    return cli._guarded()


def test_the_delays_of_a_server_come_back_to_the_microsecond(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six clients at two slots: two of every three requests wait for slots."""
    plan = Plan(idle=(64, 256), clients=(2, 6), saturated=0, prompt=64, output=12, idle_requests=4, repeats=1,
                per_client=3, at_least=12)  # fmt: skip
    stub = Stub(first_s=0.15, token_s=0.02, slots=2, url=NOWHERE)
    found = in_virtual_time(monkeypatch, stub, measure(Address.parse(stub.url), plan))
    took, at = stub.times[2:], 0  # after the probes
    for run in found.runs:
        part = took[at : at + len(run.answers)]
        at += len(run.answers)
        ttft = 1e3 * np.mean([first - read for read, first, _, _ in part])
        tpot = 1e3 * np.mean([(last - first) / (tokens - 1) for _, first, last, tokens in part if tokens > 1])
        assert means(run.answers) == (pytest.approx(ttft, abs=1e-3), pytest.approx(tpot, abs=1e-3)), run.name
    assert at == len(took)
    assert means(found.runs[0].answers) == (pytest.approx(150, abs=1e-3), pytest.approx(20, abs=1e-3))
    assert means(found.runs[-1].answers)[0] > 3 * 150, "who waits for a slot waits for whole answers"


def test_prompts_have_the_tokens_asked_for_by_the_servers_own_count_and_none_begins_as_another() -> None:
    plan = Plan(idle=(100, 400), clients=(), saturated=0, output=4, idle_requests=8, repeats=1)
    with serving(Stub()) as stub:
        found = measured(stub, plan)
    for run in found.runs:
        assert all(0.8 * run.point.prompt - 1 <= a.prompt_tokens <= run.point.prompt + 1 for a in run.answers)
        assert len({a.prompt_tokens for a in run.answers}) > 4, "lengths differ, or clients march in step"
    starts = [" ".join(body["prompt"].split()[:8]) for body in stub.seen]
    assert len(set(starts)) == len(starts)
    assert all(body["ignore_eos"] and body["stream_options"]["include_usage"] for body in stub.seen)


def test_a_closed_loop_keeps_its_clients_busy_and_sends_all_its_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(idle=(), clients=(5,), saturated=0, prompt=32, output=4, per_client=4, at_least=1, repeats=1)
    stub = Stub(first_s=0.02, url=NOWHERE)
    (run,) = in_virtual_time(monkeypatch, stub, measure(Address.parse(stub.url), plan)).runs
    assert len(run.answers) == 20
    sent = np.array([a.sent_ns for a in run.answers])
    ends = np.sort([a.last_ns for a in run.answers])
    in_flight = np.arange(1, 21) - np.searchsorted(ends, sent, side="right")
    assert in_flight.tolist() == 4 * [1, 2, 3, 4, 5], "five at once, which end at once"


def test_a_loop_stops_sending_when_its_time_is_over_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clients send every 50 ms, the last time after 300 of 330."""
    plan = Plan(idle=(), clients=(2,), saturated=0, prompt=32, output=4, at_least=200, repeats=1, minutes=0.0055)
    stub = Stub(first_s=0.05, url=NOWHERE)
    found = in_virtual_time(monkeypatch, stub, measure(Address.parse(stub.url), plan))
    assert found.notes == [f"{found.runs[0].name}: 14 of 200 requests finished in the time available"]
    assert len(found.runs[0].answers) == 14


def test_every_client_sends_once_even_without_time() -> None:
    plan = Plan(idle=(), clients=(3,), saturated=0, prompt=32, output=4, repeats=1, minutes=1e-9)
    with serving(Stub()) as stub:
        assert len(measured(stub, plan).runs[0].answers) == 3


def test_answers_shorter_than_asked_for_and_pieces_of_several_tokens_are_noted() -> None:
    with serving(Stub(wrong="short")) as stub:
        assert "2 of 2 answers were shorter" in measured(stub).notes[0]
    with serving(Stub(bunch=2)) as stub:
        assert "each piece of text had" in measured(stub).notes[0]


def test_tokens_without_text_are_tokens() -> None:
    """As special tokens are, past the end that was to be ignored."""
    with serving(Stub(wrong="no text")) as stub:
        (run,) = measured(stub).runs
    assert [a.chunks for a in run.answers] == [a.output_tokens for a in run.answers]


def test_chat_is_measured_as_completions_are() -> None:
    with serving(Stub(first_s=0.02)) as stub:
        (run,) = measured(stub, chat=True).runs
    assert stub.seen[0]["messages"][0]["role"] == "user"
    assert [a.chunks for a in run.answers] == [a.output_tokens for a in run.answers], "a role is no token"


def test_points_that_do_not_fit_the_server_are_left_out_and_named() -> None:
    with serving(Stub(length=300)) as stub:
        found = measured(stub, Plan(idle=(64, 512), clients=(), saturated=0, output=8, idle_requests=2, repeats=1))
        assert [run.point.prompt for run in found.runs] == [64]
        assert "excluded because" in found.notes[0]
        with pytest.raises(UserError, match="no point fits"):
            measured(stub, Plan(idle=(512,), clients=(), saturated=0))


def test_the_saturated_loop_has_a_quarter_more_clients_than_the_server_runs() -> None:
    points, _ = Plan(idle=(), clients=()).points(64, None)
    assert [(p.clients, p.requests) for p in points] == [(80, 800)]
    assert [p.clients for p in Plan(idle=(), clients=()).points(None, None)[0]] == [256]


@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_server_is_one_line_and_nothing_is_written(
    wrong: str, after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the first question on, or in the middle of a loop."""
    options = ["--idle", "64", "--clients", "", "--saturated", "0", "--output", "8", "--idle-requests", "4"]
    with serving(Stub(wrong=wrong, after=after)) as stub:
        out = tmp_path / "new" / "out"
        code = servesim(
            monkeypatch, "measure", stub.url, "--gpu", "h100", "--out", str(out), "--timeout", "0.5", *options
        )
    err = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert (code, len(err)) == (2, 1)
    assert list(tmp_path.iterdir()) == []
    assert all(stub.url in line and len(line) < 400 for line in err)


def test_every_wrong_stream_has_words_of_its_own() -> None:
    """Or a test above could pass for another reason than its name says."""
    lines = {}
    for wrong in STREAMS:
        waits = {"timeout_s": 0.5} if wrong == "silent" else {}
        with serving(Stub(wrong=wrong)) as stub, pytest.raises(UserError) as error:
            measured(stub, **waits)
        lines[wrong] = str(error.value).replace(stub.url, "")
    assert "did not finish within 0.5 s" in lines["silent"]
    assert "continues beyond" in lines["endless"]
    assert "in one piece" in lines["one piece"]
    assert "no usage" in lines["no usage"]
    assert "cut off" in lines["cut"]
    assert "cut off" in lines["no end"]
    assert "not a JSON object" in lines["garbage"]
    assert "is not a stream event" in lines["noise"]
    assert "EngineDead" in lines["error"]
    assert "not valid HTTP" in lines["no chunk"]
    assert "but max_tokens was" in lines["more"]
    assert "pieces of text arrived" in lines["fewer"]
    assert "must be token counts" in lines["text"]
    assert "must be token counts" in lines["zero"]
    assert "does not count prompt tokens" in lines["constant"]


def test_a_server_that_counts_prompts_wrong_later_is_found() -> None:
    with serving(Stub(wrong="grows", after=2)) as stub, pytest.raises(UserError, match="judging by earlier answers"):
        measured(stub)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://127.0.0.1:9", "connection refused"),
        ("http://no-such-host.invalid", "no-such-host.invalid"),
        ("ftp://x", "an address such as"),
        (f"http://{'x' * 64}.org", "too long"),
        ("http://a..b", "label empty"),
        ("http://x:port", "URL"),
        ("http://u:p@x", "no user name"),
    ],
)
def test_no_server_is_one_line(
    url: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert servesim(monkeypatch, "measure", url, "--gpu", "h100", "--out", str(tmp_path / "o")) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.medium
def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    with serving(Stub(first_s=0.2)) as stub:
        command = [sys.executable, "-m", "servesim", "measure", stub.url, "--gpu", "h100", "--out", str(tmp_path / "o")]
        running = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # whoever started the tests in the background has interrupts ignored, which children inherit
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        while len(stub.seen) < 4:
            assert running.poll() is None, "ended by itself"
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=300)
    assert (running.returncode, out) == (130, "")
    assert err.splitlines()[-1] == "interrupted: nothing was written"
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_is_refused_before_anything_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(Stub()) as stub:
        assert servesim(monkeypatch, "measure", stub.url, "--gpu", "h100", "--out", str(tmp_path)) == 2
    assert "exists" in capsys.readouterr().err
    assert stub.seen == []


def test_several_models_need_a_name() -> None:
    with serving(Stub(models=("a", "b"))) as stub:
        with pytest.raises(UserError, match="choose one with --served-name"):
            measured(stub)
        with pytest.raises(UserError, match="does not serve 'c'"):
            measured(stub, served_name="c")
        measured(stub, served_name="b")
    assert {body["model"] for body in stub.seen} == {"b"}


METRICS = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="24001",enable_prefix_caching="True"} 1.0\n'


@pytest.mark.medium
def test_the_files_are_read_as_cells_as_recorded_runs_and_as_their_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "mine"
    log = tmp_path / "vllm.log"
    log.write_text("INFO [utils.py:233] non-default args: {'model': 'Qwen/Qwen3-8B', 'max_num_seqs': 48}\n")
    with serving(Stub(first_s=0.03, token_s=0.002, metrics=METRICS)) as stub:
        options = ["--idle", "64", "--clients", "4", "--saturated", "0", "--prompt", "64", "--output", "20"]
        options += ["--idle-requests", "4", "--requests", "4", "--log", str(log), "--out", str(out)]
        assert servesim(monkeypatch, "measure", stub.url, "--gpu", "h100", *options) == 0
    cells = read([out])
    assert [(c.id, c.engine, c.version, c.model, c.gpu, c.tp, c.concurrency, c.requests) for c in cells] == [
        (f"{name}-r{repeat}", "vllm", "0.11.0", "Qwen/Qwen3-8B", "h100_sxm", 1, clients, count)
        for repeat in (1, 2)
        for name, clients, count in (("idle-c1-p64-o10", 1, 4), ("ladder-c4-p64-o20", 4, 40))
    ]
    assert cells[0].place != cells[1].place
    assert cells[1].isl == pytest.approx(64, rel=0.05)
    settings = recipe(cells[1]).settings
    assert settings["scheduler"]["max_num_seqs"] == 48
    assert "max_num_batched_tokens" not in settings["scheduler"], "nothing of other sources' scripts"
    assert settings["engine"] == {
        "version": "0.11.0", "max_model_len": 32768, "num_gpu_blocks": 24001, "block_size": 16,
    }  # fmt: skip
    assert (settings["requests"], settings["clients"], settings["gpu"]) == (40, {"max_concurrency": 4}, "h100")
    runs = {run.name: run for run in read_folder(out)}
    assert len(runs) == 4
    ladder = runs["runs/ladder-c4-p64-o20-r1"]
    assert (ladder.server.num_blocks, ladder.server.max_num_seqs, ladder.server.engine) == (24001, 48, "vllm 0.11.0")
    assert ladder.concurrency == 4
    assert float(ladder.ttft_ms.mean()) == pytest.approx(cells[1].ttft_ms, rel=1e-3)
    assert float(np.nanmean(ladder.tpot_ms)) == pytest.approx(cells[1].tpot_ms, rel=1e-3)
    assert json.loads((out / "server_config.json").read_text())["model"] == "Qwen/Qwen3-8B"


def test_gpus_and_formats_without_a_label_keep_their_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "mine"
    with serving(Stub()) as stub:
        options = ["--idle", "64", "--clients", "", "--saturated", "0", "--output", "8", "--idle-requests", "2"]
        options += ["--model", "Qwen/Qwen3-8B-AWQ", "--repeats", "1", "--out", str(out), "--tp", "2"]
        assert servesim(monkeypatch, "measure", stub.url, "--gpu", "rtx-pro-6000", *options) == 0
    (cell,) = read([out])
    assert (cell.gpu, cell.weights, cell.tp, cell.gpus) == ("rtx-pro-6000", "awq", 2, 2)
