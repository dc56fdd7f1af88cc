"""Two builds are compared to the byte, and every difference is named."""

from __future__ import annotations

import json
import runpy
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

DIFFERENCES = runpy.run_path(str(Path(__file__).resolve().parents[3] / ".ci" / "differences.py"))["differences"]
SUMMARY = {"warnings": ["a warning"], "notes": ["a note"], "engine": {"steps": 3, "shares": [0.5, 0.25]}, "price": 1.5}


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    (old / "summary.json").write_text(json.dumps(SUMMARY))
    (old / "report.html").write_text("<p>\na note\n</p>")
    (old / "timing.json").write_text("1")
    pq.write_table(pa.table({"row": np.arange(4), "wait": [0.0, 1.0, float("nan"), 3.0]}), old / "requests.parquet")
    shutil.copytree(old, new)
    (new / "timing.json").write_text("2")
    return old, new


def compared(old: Path, new: Path, but_notes: bool = False) -> list[str]:
    return list(DIFFERENCES(old, new, but_notes))


def test_the_same_bytes_are_no_difference_whatever_they_took(folders: tuple[Path, Path]) -> None:
    assert compared(*folders) == []


def test_words_of_notes_are_let_pass_only_where_asked(folders: tuple[Path, Path]) -> None:
    (folders[1] / "summary.json").write_text(
        json.dumps({**SUMMARY, "warnings": ["more"], "notes": ["said differently"]})
    )
    (folders[1] / "report.html").write_text("<p>\nsaid differently\n</p>")
    assert compared(*folders, but_notes=True) == []
    assert compared(*folders) == [
        "report.html: line 2, from column 1: a note -> said differently",
        "summary.json: warnings.0: a warning -> more",
        "summary.json: notes.0: a note -> said differently",
    ]


def test_sections_that_a_build_cannot_have_are_left_out_where_asked(folders: tuple[Path, Path]) -> None:
    (folders[1] / "summary.json").write_text(json.dumps({**SUMMARY, "intervals": {"ttft": 1}, "price": 2}))
    assert list(DIFFERENCES(*folders, False, ["intervals"])) == ["summary.json: price: 1.5 -> 2"]
    (folders[1] / "summary.json").write_text(json.dumps({**SUMMARY, "intervals": {"ttft": 1}}))
    assert list(DIFFERENCES(*folders, False, ["intervals"])) == []
    assert compared(*folders) == ["summary.json: intervals.ttft: nothing -> 1"]


def test_every_value_and_column_that_differs_is_named(folders: tuple[Path, Path]) -> None:
    changed = {**SUMMARY, "engine": {"steps": 3, "shares": [0.5, 0.250]}, "price": 2, "more": True}
    (folders[1] / "summary.json").write_text(json.dumps(changed).replace("0.25]", "0.250]"))
    table = pa.table({"row": np.arange(4), "wait": [0.0, 1.0, float("nan"), 4.0]})
    pq.write_table(table, folders[1] / "requests.parquet")
    (folders[0] / "steps.parquet").write_bytes(b"")
    assert compared(*folders, but_notes=True) == [
        "requests.parquet: column wait: 1 rows, first 3: 3.0 -> 4.0",
        "steps.parquet: only the old build writes it",
        "summary.json: engine.shares.1: 0.25 -> 0.250",
        "summary.json: price: 1.5 -> 2",
        "summary.json: more: nothing -> True",
    ]


def test_the_same_values_written_differently_are_a_difference(folders: tuple[Path, Path]) -> None:
    (folders[1] / "summary.json").write_text(json.dumps(SUMMARY, indent=1))
    table = pq.read_table(folders[0] / "requests.parquet")
    pq.write_table(table, folders[1] / "requests.parquet", compression="none")
    assert compared(*folders) == [
        "requests.parquet: the same values, written differently",
        "summary.json: the same values, written differently",
    ]
