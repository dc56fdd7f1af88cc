"""Every claim of the texts has its row: what `servesim reproduce all` tells, and the wrong figures it corrects."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from servesim.cli.app import app
from servesim.experiments.documents import plain
from servesim.run.presets import engine_presets
from servesim_lab.claims import GROUPS, experiments, find
from servesim_lab.claims.record import counts, lines_of, recorded
from servesim_lab.claims.refused import REFUSED

CLAIMS: dict[str, dict[str, dict[str, list[str]]]] = yaml.safe_load(
    Path(__file__).with_name("claims.yaml").read_text(encoding="utf-8")
)
QUICK = {
    "arithmetic-intensity", "batching-steps", "by-hand", "decode-time", "draft-bonus", "draft-rejected", "draft-tokens",
    "draft-verification", "drafts-or-batching", "engine-switches", "flash-attention", "kernels-and-roofline",
    "named-systems", "no-kv-cache", "out-of-scope", "output-price", "quantised-kernels", "rejection-sampling",
    "selective-batching",
}  # fmt: skip
"""Those of a second of CPU time or two."""
AGAIN = "`servesim reproduce all --out DIR`, then `python -m tests.support.wrong_figures_page DIR`"
SHORTER: dict[str, dict[str, Any]] = {"draft-tokens": {"tokens": 20_000}, "draft-bonus": {"tokens": 20_000}}


def named() -> list[Any]:
    """(experiment, verdict -> rows), the long ones marked."""
    rows = [(name, claims) for group in CLAIMS.values() for name, claims in group.items()]
    return [pytest.param(*row, id=row[0], marks=[] if row[0] in QUICK else [pytest.mark.claims]) for row in rows]


def test_every_experiment_is_listed_in_its_group() -> None:
    assert list(CLAIMS) == list(GROUPS)
    listed = {name: group for group, names in CLAIMS.items() for name in names}
    assert listed == {name: one.group for name, one in experiments().items()}


@pytest.mark.parametrize(("name", "claims"), named())
def test_every_claim_has_a_row_and_what_arithmetic_settles_its_verdict(name: str, claims: dict[str, list[str]]) -> None:
    (one,) = find(name)
    outcome = one.run(one.given(**SHORTER.get(name, {})))
    rows = outcome.rows
    if name not in SHORTER and name in recorded():
        kept = [json.loads(line) for line in lines_of(name, plain([asdict(row) for row in rows]))]
        assert [{"experiment": name, **row} for row in recorded()[name]] == kept, AGAIN
    for verdict, claimed in claims.items():
        for what in claimed:
            exact = [row for row in rows if row.what == what]
            found = exact or [row for row in rows if row.what.startswith(what)]
            assert found, f"{name} has no row {what!r}"
            if verdict != "told":
                assert {row.verdict for row in found} == {verdict}, what


def test_the_record_is_of_experiments_and_the_list_counts_it() -> None:
    assert [*recorded()] == [name for name in experiments() if name in recorded()], AGAIN
    assert {*recorded()} >= QUICK, AGAIN
    found = CliRunner().invoke(app, ["reproduce", "--list", "--json"])
    listed = json.loads(found.stdout)
    assert listed["recorded"] == counts()
    assert sum(counts().values()) == sum(len(rows) for rows in recorded().values())
    said = CliRunner().invoke(app, ["reproduce", "--list"]).stdout
    assert f"{len(experiments())} experiments; {sum(counts().values())} claims in the shipped record of " in " ".join(
        said.split()
    )
    assert f"{counts()['partly']} partly" in " ".join(said.split())
    assert all(claim in " ".join(said.split()) for claim in REFUSED)


def test_every_preset_that_the_texts_name_serves() -> None:
    (one,) = find("named-systems")
    used = {settings["preset"] for settings in one.given()["engines"].values()}
    assert used == set(engine_presets()) - {"vllm-v0", "fastertransformer"}  # which papers name, not the texts
    outcome = one.run(one.given(techniques={}))
    assert [row.simulated[:17] for row in outcome.rows[:-1]] == ["40 of 40 answered"] * len(used)


def test_a_technique_that_changes_nothing_does_not_work() -> None:
    (one,) = find("named-systems")
    outcome = one.run(one.given(engines={}, techniques={"nothing": {"for": "kv", "set": {"seed": 1}}}))
    assert outcome.rows[0].verdict == "differs"
    refused = {"for": "ttft", "set": {"trace": "synth:prompt=9000,output=64,rate=10"}}
    outcome = one.run(one.given(engines={}, techniques={"prompts that no model takes": refused}))
    assert outcome.rows[0].verdict == "differs"
