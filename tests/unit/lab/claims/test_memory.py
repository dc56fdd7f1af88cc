"""`servesim reproduce memory`: every row of the texts' table, with figures computed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from servesim.errors import UserError
from servesim_lab.claims import Outcome, Row, find
from servesim_lab.claims.assumptions import load
from servesim_lab.claims.memory import memory, round_trip, waste
from servesim_lab.claims.worker import run

EXPERIMENT = find("memory")[0]
CORRECTED = {
    "70B, 8 KV heads, 64 x 32,768 tokens": ("172 GB", "687 GB"),  # 64 x 32,768 x 327,680 B
    "70B: 84 GB of KV against the weights": (
        "larger than the weights themselves",
        "83.9 GB of KV, 138 GB of weights in bf16",
    ),
    "Llama-3-8B, a token": ("2,500,000 B", "131,072 B"),  # 2 x 32 x 8 x 128 x 2
    "Llama-3-8B, 131,072 tokens": ("320 GB", "17.2 GB"),
    "numbers a token and layer, MHA": ("8,192", "16,384"),
    "numbers a token and layer, GQA-8": ("1,024", "2,048"),
    "numbers a token and layer, MQA": ("128", "256"),
    "MHA to MLA": ("14 x", "28.4 x"),  # 16,384 / 576
    "70B in int4 on one consumer GPU": ("it fits", "35.3 GB against 25.4 and 33.7 GB of memory"),
    "3 bits instead of 16": ("4 x less", "5.33 x less"),
    "int8 round trip of [0.5, -0.2, 0, -1]: largest error": ("0.001", "0.00394"),
}
REPRODUCED = {
    "70B, 64 KV heads, 32,000 tokens": "83.9 GB",
    "70B, 8 KV heads, 32,000 tokens": "10.5 GB",
    "70B, 8 KV heads, 4,096 tokens": "1.34 GB",
    "Llama-3-8B, 131,072 tokens, another text": "16.00 GiB = 17.2 GB",
    "7B, 4,096 tokens": "2.00 GiB = 2.15 GB",
    "numbers a token and layer, MLA": "576",
    "tokens kept of 32,768, window of 4,096": "4,096",
    "KV of layers that share it by pairs": "0.5 x",
    "70B weights in fp32": "276 GB",
    "70B weights in int4": "34.5 GB",
    "7B weights in q4_k_m": "4.12 GB",  # 6.738 x 4.8944 / 8
    "7B weights in int3": "2.53 GB",
    "attention matrix, 8,192 tokens, a head in fp16": "134 MB",
    "attention matrices, 8,192 tokens, a layer of 64 heads": "8.00 GiB = 8.59 GB",
    "attention matrix, 32,768 tokens, a head in fp32": "4.29 GB",
    "a tile of 256 x 256 in fp16": "131 kB",
}


def given(**changes: Any) -> dict[str, Any]:
    return dict(EXPERIMENT.given(**changes))


def short() -> dict[str, Any]:
    """The experiment with few requests and two allocators."""
    asked = given()["waste"]
    systems = {
        name: asked["systems"][name] for name in ("contiguous, max", "contiguous, pow2", "contiguous, oracle", "paged")
    }
    return given(waste={**asked, "requests": 400, "systems": systems})


@pytest.fixture(scope="module")
def rows() -> dict[str, Row]:
    return {row.what: row for row in memory(short()).rows}


@pytest.mark.parametrize("what", CORRECTED)
def test_wrong_figures_are_corrected(rows: dict[str, Row], what: str) -> None:
    row = rows[what]
    assert (row.published, row.simulated, row.verdict) == (*CORRECTED[what], "corrected")


@pytest.mark.parametrize("what", REPRODUCED)
def test_right_figures_are_reproduced(rows: dict[str, Row], what: str) -> None:
    assert (rows[what].simulated, rows[what].verdict) == (REPRODUCED[what], "reproduced")


def test_both_wrong_figures_of_the_70b_model_at_4096_tokens_are_corrected() -> None:
    wrong = [row for row in memory(short()).rows if row.what == "70B, 4,096 tokens"]
    assert [(row.published, row.simulated, row.verdict) for row in wrong] == [
        ("2.5 GB", "1.34 GB", "corrected"),
        ("40 GB", "1.34 GB", "corrected"),
    ]
    assert all("10.7 GB" in row.note for row in wrong)


def test_the_formula_holds_for_every_model_without_latents_windows_and_sharing(rows: dict[str, Row]) -> None:
    assert rows["KV bytes"].verdict == "reproduced"


def test_a_round_trip_is_off_by_half_a_step_at_most() -> None:
    assert round_trip([0.5, -0.2, 0.0, -1.0]) == pytest.approx(0.5 / 127)  # 63.5 steps become 64
    assert round_trip([1.0, -1.0]) == 0.0
    assert round_trip([7.0, 0.5], bits=4) == pytest.approx(0.5)  # steps of 1: a half goes to 0


def test_other_assumptions_give_other_verdicts() -> None:
    """With eight heads in place of 64 nothing is 84 GB; on a card of 80 GB four bits fit."""
    changed = memory({**short(), "multi_head": {"num_key_value_heads": 8}, "consumer_gpus": ["h100"]})
    rows = {row.what: row.verdict for row in changed.rows}
    assert rows["70B, 64 KV heads, 32,000 tokens"] == "differs"
    assert rows["70B in int4 on one consumer GPU"] == "reproduced"


def test_contiguous_memory_is_mostly_waste_and_paged_memory_nearly_full() -> None:
    outcome = Outcome()
    runs = waste(outcome, short())
    # 2,048 slots each for 499 tokens at most on average: seven requests, however many wait
    assert (runs["contiguous, max"].batch, runs["contiguous, max"].least) == (7, 7)
    assert runs["contiguous, max"].used < runs["contiguous, pow2"].used < runs["contiguous, oracle"].used < 0.45
    assert runs["paged"].used > 0.94
    assert runs["paged"].reserved == pytest.approx(8 * runs["paged"].batch / 15_728, rel=0.15)  # half a block each
    verdicts = {row.what: row.verdict for row in outcome.rows}
    assert verdicts["KV memory wasted, paged"] == "reproduced"
    assert verdicts["KV memory wasted, contiguous, pow2"] == "reproduced"


@pytest.mark.parametrize(
    ("old", "new"), [("  MLA:", "  MLB:"), ("rate: 10", "rate: fast"), ("tile: 256", "tiles: 256")]
)
def test_an_edited_scenario_that_cannot_be_run_is_one_line(tmp_path: Path, old: str, new: str) -> None:
    text = load("memory")[1]
    assert text.count(old) == 1
    (tmp_path / "memory.yaml").write_text(text.replace(old, new))
    with pytest.raises(UserError, match=r"memory.yaml: the experiment cannot run on it: (KeyError|ValueError)"):
        run(EXPERIMENT, tmp_path, lambda name, row: None)


@pytest.mark.slow
def test_the_whole_experiment_names_every_allocator() -> None:
    document = EXPERIMENT.document()
    said = {row["what"].removeprefix("KV memory wasted, ") for row in document["rows"] if "wasted" in row["what"]}
    assert {"paged", "prefix-hash", "prefix-radix", "prefix-oracle", "hybrid", "contiguous, max"} <= said
    assert {row["verdict"] for row in document["rows"]} == {"reproduced", "corrected", "shown", "differs"}
    assert [figure["name"] for figure in document["figures"]] == ["kv-by-attention", "held", "waste"]
