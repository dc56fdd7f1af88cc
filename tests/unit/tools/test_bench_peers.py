"""The comparison with the Rust replay: its arithmetic, and what each side is told. Runs without the replay."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from subprocess import CompletedProcess
from typing import Any

import pytest

from benchmarks import peers, peers_dynamo, peers_servesim
from servesim import Scenario

SERVED = {"requests": 10, "input_tokens": 200, "output_tokens": 30}
WORK = {**peers.LIMITS, "trace": "rows.jsonl", "block_size": 16}


def rounds(*seconds: float, **more: Any) -> list[dict[str, Any]]:
    return [{**SERVED, "cpu_s": s, **more} for s in seconds]


RUNS: dict[tuple[str, int], list[dict[str, Any]]] = {
    (peers.REPLAY, 512): rounds(5.0, 3.0, 4.0),
    ("servesim", 512): [{**SERVED, "cpu_s": s, "loop_cpu_s": s / 2} for s in (2.5, 9.0, 2.0)],
    (peers.REPLAY, 16): rounds(8.0, 6.0, 7.0),
    ("servesim", 16): rounds(2.0, 2.0, 2.0),
}


def test_a_row_is_the_median_round_and_how_many_times_it_the_replay_takes() -> None:
    rows = {(row["side"], row["block_size"]): row for row in peers.rows_of(RUNS)}
    assert [(row["cpu_s"], row["times"], row["times_512"]) for row in rows.values()] == [
        (4.0, 1.0, 1.0),
        (2.5, 1.6, 1.6),
        (7.0, 1.0, 4 / 7),
        (2.0, 3.5, 2.0),
    ]
    assert rows["servesim", 512]["loop_cpu_s"] == 1.25  # of the same round
    assert rows["servesim", 512]["rounds_cpu_s"] == [2.5, 9.0, 2.0]


def test_a_line_tells_the_median_the_range_and_both_ratios() -> None:
    lines = [peers.line(row).split() for row in peers.rows_of(RUNS)]
    assert lines[0] == [peers.REPLAY, "512", "4.00", "3.00", "5.00", "1.00", "1.00"]
    assert lines[1] == ["servesim", "512", "2.50", "2.00", "9.00", "1.25", "1.60", "1.60"]


@pytest.mark.parametrize("key", peers.TRAFFIC)
def test_other_traffic_is_refused(key: str) -> None:
    peers.check_traffic(RUNS)
    with pytest.raises(RuntimeError, match=rf"not the same traffic.*{SERVED[key] + 1}"):
        peers.check_traffic({**RUNS, ("servesim", 16): rounds(2.0, **{key: SERVED[key] + 1})})


def test_figures_are_the_last_line_and_a_failure_is_told_by_its_last_words() -> None:
    assert peers.parse("a", CompletedProcess([], 0, 'a log line\n{"cpu_s": 1.5}\n', "")) == {"cpu_s": 1.5}
    with pytest.raises(RuntimeError, match=r"^a: no such trace$"):
        peers.parse("a", CompletedProcess([], 1, "", "Traceback\nno such trace\n"))
    with pytest.raises(RuntimeError, match=r"^a: exit code -9$"):
        peers.parse("a", CompletedProcess([], -9, "", ""))


@pytest.mark.parametrize("block", peers.BLOCKS)
def test_both_sides_get_the_same_limits(block: int) -> None:
    work = {**WORK, "block_size": block}
    theirs = peers_dynamo.arguments(work)
    engine = theirs["extra_engine_args"]["engine"]
    ours = Scenario.of({"trace": "file", **peers_servesim.settings(work)})
    assert theirs["num_workers"] == ours.replicas == 8
    assert engine["num_gpu_blocks"] == ours.engine.num_gpu_blocks
    assert engine["num_gpu_blocks"] * engine["block_size"] == peers.LIMITS["kv_tokens"]  # nothing is cut off
    assert ours.engine.block_size == engine["block_size"] == block
    limits = {key: engine[key] for key in ("max_num_seqs", "max_num_batched_tokens")}
    assert ours.scheduler == {"name": "vllm", **limits}


def test_servesim_s_side_tells_what_it_served(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    line = '{"timestamp": %d, "input_length": 700, "output_length": 5, "hash_ids": [1, 2]}\n'
    rows.write_text("".join(line % (i * 1000) for i in range(9)))
    figures = peers_servesim.measure({**WORK, "trace": str(rows)})
    assert [figures[key] for key in peers.TRAFFIC] == [9, 6300, 45]
    assert 0 < figures["loop_cpu_s"] < figures["cpu_s"]


def test_what_is_stored_follows_from_its_rounds_and_names_no_place() -> None:
    text = (peers.ROOT / "benchmarks" / "peers.json").read_text()
    assert "/" not in text
    rows = json.loads(text)["rows"]
    assert {(row["side"], row["block_size"]) for row in rows} == {
        (s.name, b) for s in peers.SIDES for b in peers.BLOCKS
    }
    replay = {row["block_size"]: median(row["rounds_cpu_s"]) for row in rows if row["side"] == peers.REPLAY}
    for row in rows:
        assert row["cpu_s"] == median(row["rounds_cpu_s"])
        assert row["times"] == replay[row["block_size"]] / row["cpu_s"]
        assert row["times_512"] == replay[512] / row["cpu_s"]


def test_too_few_rounds_a_missing_environment_and_a_missing_folder_are_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(peers, "ROOT", tmp_path)
    for arguments, told in (
        (["--rounds", "4"], "--rounds is 4 but must be odd and at least 3"),
        (["--rounds", "1"], "--rounds is 1 but must be odd and at least 3"),
        (["--json", str(tmp_path / "no" / "file")], "there is no such folder"),
        ([], ".venv-peers/bin/python is not there, make bench-peers makes it"),
    ):
        with pytest.raises(SystemExit, match="2"):
            peers.main(arguments)
        assert told in capsys.readouterr().err.splitlines()[-1]
