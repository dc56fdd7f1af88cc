"""Choices against AIConfigurator: what is asked, what is chosen, and how a choice is scored."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from servesim_lab.against_aiconfigurator import (
    TOOLS,
    Candidate,
    Score,
    candidates,
    chosen,
    compared,
    is_fitted,
    main,
    of_all_engines,
    questions,
    rate,
    scored,
)
from servesim_lab.ask_aiconfigurator import answer, question
from tests.support.cells import cell, row, table

OURS, THEIRS = TOOLS


def one(
    tpot: float, output: float, ours: tuple[float, float], theirs: tuple[float, float] = (1.0, 1.0), **place: str
) -> Candidate:
    group = {"engine": "vllm", "gpu": "h100_sxm", "model": "m"} | place
    predicted = {OURS: ours, THEIRS: theirs}
    return Candidate(tuple(group.values()), (group["gpu"], group["model"]), tpot, output, predicted)


FAST = one(10.0, 100.0, (12.0, 90.0))
MIDDLE = one(25.0, 200.0, (24.0, 210.0))
SLOW = one(40.0, 400.0, (39.0, 390.0))


def test_the_cell_with_the_most_predicted_output_within_the_limit_is_chosen() -> None:
    assert chosen([FAST, MIDDLE, SLOW], OURS, 30.0) == [MIDDLE]
    assert scored([FAST, MIDDLE, SLOW], OURS, 30.0) == Score(1.0, 1.0, 0.0, False)


def test_a_choice_gives_its_share_of_the_best_measured_output_within_the_limit() -> None:
    timid = one(25.0, 200.0, (31.0, 210.0))
    found = scored([FAST, timid, SLOW], OURS, 30.0)
    assert (found.share, found.near, found.broken) == (0.5, 0.0, 0.0)


def test_a_choice_that_breaks_the_limit_by_over_a_tenth_gives_nothing() -> None:
    bold = one(33.1, 300.0, (29.0, 310.0))
    assert scored([FAST, MIDDLE, bold], OURS, 30.0) == Score(0.0, 1.0, 1.0, False)


def test_a_choice_that_breaks_the_limit_by_less_counts_as_the_best_at_most() -> None:
    nearly = one(33.0, 300.0, (29.0, 310.0))
    assert scored([FAST, MIDDLE, nearly], OURS, 30.0) == Score(1.0, 1.0, 0.0, False)


def test_no_choice_gives_nothing_and_breaks_nothing() -> None:
    assert scored([FAST, MIDDLE, SLOW], OURS, 11.0) == Score(0.0, 0.0, 0.0, True)


def test_equal_predictions_count_as_their_mean() -> None:
    same = [one(20.0, 200.0, (20.0, 5.0)), one(20.0, 100.0, (20.0, 5.0)), one(34.0, 300.0, (20.0, 5.0))]
    assert scored(same, OURS, 30.0) == Score(0.5, pytest.approx(2.5 / 3), pytest.approx(1 / 3), False)


def test_a_limit_is_asked_that_some_cells_keep_and_others_break() -> None:
    assert [limit for _, limit in questions([FAST, MIDDLE, SLOW])] == [20.0, 30.0]
    assert [limit for _, limit in questions([FAST, MIDDLE, SLOW], loose=True)] == [20.0, 30.0, 50.0, 80.0, 100.0]


def test_a_group_has_three_cells() -> None:
    assert not list(questions([FAST, MIDDLE]))


def test_engines_are_pooled_where_there_are_several() -> None:
    other = one(25.0, 200.0, (24.0, 210.0), engine="sglang")
    alone = one(25.0, 200.0, (24.0, 210.0), gpu="b200_sxm")
    pooled = of_all_engines([FAST, other, alone])
    assert [found.group for found in pooled] == [("all", "h100_sxm", "m")] * 2


def test_the_difference_of_both_tools_has_an_interval_by_gpu_and_model() -> None:
    right, wrong = (25.0, 210.0), (25.0, 5.0)
    cells = [
        found
        for gpu in ("a", "b", "c")
        for found in (
            one(10.0, 100.0, (10.0, 100.0), (10.0, 100.0), gpu=gpu),
            one(25.0, 200.0, right, right if gpu == "a" else wrong, gpu=gpu),
            one(60.0, 400.0, (60.0, 400.0), (60.0, 400.0), gpu=gpu),
        )
    ]
    found = compared([(group, limit) for group, limit in questions(cells) if limit == 30.0])
    assert (found["choices"], found["groups"], found["clusters"]) == (3, 3, 3)
    assert found["near"][OURS] == {"value": 1.0, "low": 1.0, "high": 1.0}
    difference = found["near"]["difference"]
    assert difference["value"] == pytest.approx(2 / 3)
    assert (difference["low"], difference["high"]) == (0.0, 1.0)
    assert compared([]) == {"choices": 0}


def test_one_gpu_and_model_has_no_interval() -> None:
    found = compared(list(questions([FAST, MIDDLE, SLOW])))
    assert found["near"]["difference"]["low"] is None


def test_only_cells_that_both_answer_are_candidates() -> None:
    cells = [cell(id=name) for name in "abc"]
    found = candidates(cells, {"a": (7.0, 20.0), "b": (7.0, 20.0)}, {"b": (6.0, 500.0), "c": (6.0, 500.0)})
    assert [known.id for known, _ in found] == ["b"]
    assert found[0][1].predicted == {OURS: (7.0, rate(cells[1], 20.0, 7.0)), THEIRS: (6.0, 500.0)}


def test_output_is_that_of_a_closed_loop() -> None:
    known = cell(concurrency=4, osl=100, tp=2, source="silicon_concurrency=4; gap-analysis")
    assert rate(known, 10.0, 10.0) == pytest.approx(1e3 * 4 * 100 / 1000.0 / 2)


@pytest.mark.parametrize(
    ("labels", "fitted"),
    [
        ({"engine": "trtllm"}, True),
        ({"engine": "sglang", "gpu": "b200_sxm"}, False),
        ({"model": "MiniMaxAI/MiniMax-M2.5", "gpu": "b300_sxm"}, True),
        ({"model": "meta-llama/Llama-3.1-70B", "gpu": "b200_sxm", "precision": "fp4"}, False),
    ],
)
def test_cells_that_numbers_were_fitted_to_are_known_by_their_labels(labels: dict[str, Any], fitted: bool) -> None:
    assert is_fitted(cell(**labels)) is fitted


def asked(**other: str) -> dict[str, str]:
    plain = {"id": "a", "engine": "vllm", "model": "zhipuai/GLM-5", "gpu": "h200_sxm", "precision": "fp8", "tp": "8"}
    plain |= {
        "dp": "1",
        "moe_tp": "1",
        "ep": "8",
        "batch": "16",
        "isl": "922",
        "osl": "922",
        "kv": "",
        "budget": "8192",
    }
    return plain | other


def test_labels_become_checkpoints_that_are_bundled() -> None:
    assert question(asked(), "SILICON", False)["model_path"] == "zai-org/GLM-5-FP8"
    assert question(asked(kv="bf16"), "SILICON", True)["ctx_tokens"] == 8192


def test_keys_in_a_format_that_has_no_tables_are_asked_in_the_default_one() -> None:
    def estimate(**arguments: Any) -> SimpleNamespace:
        if "kvcache_quant_mode" in arguments:
            raise ValueError("no table")
        return SimpleNamespace(
            tpot=5.0, ttft=50.0, raw={"tokens/s/gpu": 9.0}, backend_version="1", kv_cache_warning=None
        )

    assert answer(estimate, asked(kv="fp8"), "SILICON", False)["output_per_gpu"] == 9.0


def test_the_reason_of_a_refusal_is_kept() -> None:
    def estimate(**_: Any) -> SimpleNamespace:
        raise RuntimeError("does not\nfit")

    assert answer(estimate, asked(), "SILICON", False) == {"id": "a", "reason": "RuntimeError: does not fit"}


def test_cells_are_asked_and_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = "silicon_concurrency={}; gap-analysis"
    rows = [
        row(id=str(clients), silicon_data_source=source.format(clients), silicon_tpot_ms=tpot)
        for clients, tpot in ((4, 7.0), (8, 25.0), (64, 60.0), (128, 90.0))
    ]
    cells = table(tmp_path / "cells.csv", rows)
    main(["ask", str(cells), str(tmp_path / "questions.csv")])
    with (tmp_path / "questions.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["batch"] for line in lines] == ["4", "8", "64", "128"]
    folder = tmp_path / "score"
    folder.mkdir()
    (folder / "summary.json").write_text(json.dumps({"scores": {}, "decisions": {}, "screen": {}}))
    simulated = "".join(f"{i},{t},20,\n" for i, t in (("4", 7), ("8", 25), ("64", 60), ("128", 90)))
    (folder / "cells.csv").write_text(f"id,tpot_simulated_ms,ttft_simulated_ms,screened\n{simulated}")
    answers = tmp_path / "answers.csv"
    answers.write_text(
        "id,tpot_ms,ttft_ms,output_per_gpu,version,doubt,reason\n"
        "4,7,20,500,1,,\n8,35,20,300,1,,\n64,60,20,1000,1,,\n128,,,,,,OOM\n"
    )
    capsys.readouterr()
    main(["score", str(cells), str(folder), str(answers), "--choices", str(tmp_path / "choices.jsonl")])
    found = json.loads(capsys.readouterr().out)
    assert found["cells"] == {"given": 4, "servesim": 4, "aiconfigurator": 3, "both": 3}
    assert list(found["not answered by aiconfigurator"].values()) == [1]
    assert found["one engine"]["not fitted"]["near"][OURS]["value"] == 1.0
    assert len((tmp_path / "choices.jsonl").read_text().splitlines()) == 2 * found["one engine"]["all"]["choices"]
