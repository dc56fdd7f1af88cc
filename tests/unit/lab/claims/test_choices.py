"""Searches over crossed techniques, and the choices they answer."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from servesim.hardware import ModelSpec
from servesim_lab.claims import Outcome, find
from servesim_lab.claims.by_hand import softmax
from servesim_lab.claims.choices import times
from servesim_lab.claims.crossed import Found, merged, model_file, search

INF = float("inf")


def run(name: str, **changes: Any) -> tuple[Outcome, dict[str, Any]]:
    (one,) = find(name)
    outcome = one.run(one.given(**changes))
    return outcome, {row.what: row for row in outcome.rows}


def found(higher: bool = True) -> Found:
    """Two techniques: A doubles, B triples, both together five times; only the baseline of B runs with C."""
    values = {("-", "-"): 10.0, ("-", "B"): 30.0, ("A", "-"): 20.0, ("A", "B"): 50.0, ("C", "-"): 5.0, ("C", "B"): None}
    return Found({"first": ["-", "A", "C"], "second": ["-", "B"]}, values, {("C", "B"): "too large"}, {}, higher)


def test_gains_by_hand() -> None:
    it = found()
    assert it.baseline == ("-", "-")
    assert it.ranked()[0] == ("A", "B")
    assert it.ranked()[-1] == ("C", "-")
    assert it.gain(("A", "B"), ("-", "-")) == 5.0
    assert (it.alone("A"), it.alone("B"), it.alone("C")) == (2.0, 3.0, 0.5)
    assert it.in_the_best("A") == pytest.approx(50 / 30)
    assert it.in_the_best("B") == pytest.approx(50 / 20)
    assert it.in_the_best("C") == pytest.approx(5 / 50)
    assert it.gain(("C", "B"), ("-", "-")) == 0.0
    assert it.gain(("-", "-"), ("C", "B")) == INF


def test_less_is_better_for_latencies() -> None:
    it = found(higher=False)
    assert it.ranked()[0] == ("C", "-")
    assert it.alone("C") == 2.0
    assert it.in_the_best("A") == pytest.approx(5 / 20)


def test_gains_are_told() -> None:
    assert [times(g) for g in (3.456, 0.0, INF)] == ["3.46 x", "does not run", "makes it fit"]


def test_settings_are_merged_one_level_deep() -> None:
    base = {"engine": {"block_size": 8, "async_scheduling": True}, "kv": "paged"}
    change = {"engine": {"async_scheduling": False}, "tp": 2}
    together = {"engine": {"block_size": 8, "async_scheduling": False}, "kv": "paged", "tp": 2}
    assert merged(base, change) == together
    assert base["engine"] == {"block_size": 8, "async_scheduling": True}


def test_a_bundled_model_with_other_keys(tmp_path: Path) -> None:
    assert model_file("llama-2-70b", tmp_path) == "llama-2-70b"
    path = model_file({"of": "llama-2-70b", "num_key_value_heads": 64}, tmp_path)
    assert json.loads(Path(path).read_text())["num_hidden_layers"] == 80
    mha, gqa = ModelSpec.load(path), ModelSpec.load("llama-2-70b")
    assert mha.num_kv_heads == 8 * gqa.num_kv_heads
    assert mha.name == "llama-2-70b-num_key_value_heads=64"


def test_every_combination_is_run_and_what_does_not_fit_says_so() -> None:
    question = {
        "metric": "output_throughput",
        "base": {"trace": "synth:prompt=64,output=16", "requests": 20, "rate": INF, "gpu": "h100", "kv": "paged"},
        "options": {
            "size": {"8B": {"model": "llama-3.1-8b"}, "70B": {"model": "llama-3.1-70b"}},
            "weights": {"bf16": {}, "fp8": {"dtype": "fp8"}, "int4": {"dtype": "int4"}},
        },
    }
    it = search(question)
    assert len(it.values) == 6
    assert it.values["70B", "bf16"] is None
    assert "no KV block fits" in it.errors["70B", "bf16"]
    assert it.gain(("70B", "int4"), ("70B", "bf16")) == INF, "what makes it fit"
    assert it.alone("fp8") > 1
    assert it.prices["8B", "fp8"] < it.prices["8B", "bf16"]


def test_choices_are_judged_by_what_they_bring() -> None:
    (one,) = find("choices")
    question = one.given()["constraints"]["throughput"]
    question = {**question, "base": {**question["base"], "requests": 60}}
    _, rows = run("choices", constraints={"throughput": question})
    assert rows["throughput: continuous batching, paging"].verdict == "reproduced"
    claimed = {**question, "claimed": ["no such gain"], "options": {"weights": {"bf16": {}, "no such gain": {}}}}
    _, rows = run("choices", constraints={"nothing": claimed})
    row = rows["nothing: no such gain"]
    assert (row.verdict, row.simulated) == ("corrected", "no such gain: 1 x alone, 1 x in the best")


@pytest.mark.medium
def test_the_quiz_ranks_and_says_what_each_part_is_worth() -> None:
    (one,) = find("quiz-70b-on-2-h100")
    given = one.given()
    options = {key: given["options"][key] for key in ("weights", "layout")}
    outcome, rows = run("quiz-70b-on-2-h100", options=options, base={**given["base"], "requests": 40}, taught=["PP 2"])
    tokens = [float(rows[f"place {i}"].simulated.split()[0].replace(",", "")) for i in range(1, 6)]
    assert tokens == sorted(tokens, reverse=True)
    assert outcome.notes == ["9 combinations, of which 1 cannot run"], "bf16 on one GPU"
    placed = [row.simulated for what, row in rows.items() if what.startswith("place")]
    best = next(tokens[i] for i, text in enumerate(placed) if text.endswith(", PP 2"))
    row = rows["PP 2: the table of constraints"]
    assert best < tokens[0]
    assert (row.simulated, row.verdict) == (f"{100 * best / tokens[0]:.0f} % of the best", "corrected")


def test_an_output_token_costs_the_more_the_fewer_decode_together() -> None:
    outcome, rows = run("output-price", batches=[1, 32, 1024])
    ratios = outcome.figures[0].curves[0].y  # type: ignore[union-attr]
    assert ratios == sorted(ratios, reverse=True)
    row = rows["output to input, 1 to 1024 decode together"]
    assert (row.verdict, row.share) == ("partly", 1.0), "all of 3 to 10 lies between the least and the most"
    assert row.note.startswith("it is where 32 to 32 decode together")
    _, rows = run("output-price", batches=[1])
    assert rows["output to input, 1 to 1 decode together"].verdict == "corrected"


def test_end_to_end_compares_with_the_last_stack() -> None:
    base = {"trace": "synth:prompt=64,output=33", "rate": INF, "model": "llama-3.1-8b", "gpu": "h100", "host": "none"}
    one = {"requests": 2, "scheduler": "static:max_batch_size=1", "kv": "contiguous"}
    stacks = {"one": one, "two": {"requests": 2, "scheduler": "vllm", "kv": "paged"}}
    _, rows = run("end-to-end", base=base, stacks=stacks, claims={"one": [1.9, 2.0]})
    assert rows["from one"].verdict == "reproduced", "two at a time, a step of two being hardly longer than of one"


def test_what_is_out_of_scope_is_tried() -> None:
    _, rows = run("out-of-scope")
    assert (
        "state_size indicates a state-space model, which is not supported"
        in rows["Mamba alone, without attention"].simulated
    )
    assert "vision_config indicates a multi-modal model" in rows["images beside text"].simulated
    assert rows["Mamba layers between attention layers"].simulated.endswith("ms a token")
    pruned = float(rows["a quarter of the layers pruned: speed of a token"].simulated.split()[0])
    assert 1.2 < pruned < 32 / 24, "embedding, LM head and sampler stay"


def test_softmax_at_four_is_by_hand_and_a_dog_is_no_two_cars() -> None:
    _, rows = run("by-hand")
    assert softmax([10, 2, 1], 4) == pytest.approx([math.exp(i) / 15.1158 for i in (2.5, 0.5, 0.25)], rel=1e-4)
    assert rows["teacher, softmax at 4"].simulated == "0.806, 0.109, 0.085"
    assert rows["student, softmax at 4"].simulated == "0.560, 0.234, 0.206"
    dog = rows["teacher, dog to car, softmax at 4"]
    assert (dog.simulated, dog.verdict) == ("1.28 x", "corrected")  # e^0.25
