"""Notes that list variants stay short, however many there are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from servesim.experiments import capacity_answer, compare_document, compare_error, front_error, goals_missed, sameness
from servesim.experiments import sweep as sweeps
from servesim.experiments.named import several
from servesim.run.stretched import Stretch

MANY = [f"gpu=h100 / tp={i} / scheduler=vllm" for i in range(33)]
LONGEST = 320
"""Characters of a note that can be read at a glance: three lines of a page."""


def test_few_names_are_all_written() -> None:
    assert several(["a", "b", "c"]) == "a; b; c"
    assert several(["a", "b"], ", ") == "a, b"


def test_many_names_become_the_first_and_a_count_of_the_others() -> None:
    names = ["n" * 30] * 33
    assert several(names) == "; ".join(names[:3]) + " and 30 more"


def test_a_single_name_is_never_left_out() -> None:
    assert several(["n" * 50, "m" * 50, "o" * 50]).startswith("n" * 50 + " and 2 more")
    assert several(["n" * 90, "m" * 90]) == "n" * 90 + "; " + "m" * 90


def variant(label: str, **more: Any) -> dict[str, Any]:
    return {"label": label, "status": "ok", "stability": "stable", "error": None, "unstable": 0, "oracle": False,
            "cells": ["a"], **more}  # fmt: skip


class Six:
    """Six replicates, which need no note."""

    notes: tuple[str, ...] = ()
    kind = "seeds"
    recorded = False

    def __len__(self) -> int:
        return 6


def capacity_notes() -> list[str]:
    row = {"verdict": "carries", "error": None, "goal": 0, "window": None, "minute": None, "gpu": None}
    short = [{**row, "label": label, "enough_requests": 2100, "low_end_needs": 5000} for label in MANY]
    broken = {**row, "verdict": "failed", "error": "no block fits", "enough_requests": None, "low_end_needs": None}
    failed = [{**broken, "label": f"{label} in fp8"} for label in MANY]
    return capacity_answer.notes([*short, *failed], Six(), [SimpleNamespace(share=0.99)], {})  # type: ignore


NOTES = {
    "capacity": capacity_notes,
    "sweep": lambda: sweeps._notes(
        [variant(f"{label}{state}", stability=state) for label in MANY for state in ("unstable", "undecided")]
        + [variant(label, status="failed", error="no block fits") for label in MANY]
    ),
    "compare": lambda: compare_document._notes(
        [variant(label, unstable=6) for label in MANY] + [variant(label, error="no block fits") for label in MANY],
        Six(),  # type: ignore[arg-type]
    ),
    "error bars of a comparison": lambda: compare_error.words(
        [{"variant": label, "low": None, "high": None, "says": "none: no server was measured"} for label in MANY]
    ),
    "misses": lambda: goals_missed.missed_text({label: goals_missed.Miss("99 % within", 0.5) for label in MANY}),
    "equal runs": lambda: [sameness.equal_text({"labels": MANY, "why": None})],
    "budgets": lambda: sameness.warnings_of(
        [
            {"label": label, "axes": {}, "max_num_batched_tokens": i, "asynchronous": i == 0}
            for i, label in enumerate(MANY)
        ]
    ),
    "fronts": lambda: front_error.front_sentences(
        {"says": "propagated", "front": [
            {"rate": None, "label": label, "told": told, "on": on, "against": "gpu=l40s / tp=1", "sure": 0.6,
             "says": "none: x"}
            for label in MANY for told, on in ((True, True), (False, True), (False, False), (None, True))
        ]}
    ),
}  # fmt: skip


@pytest.mark.parametrize("which", NOTES)
def test_notes_on_33_variants_are_short_and_few(which: str) -> None:
    notes = NOTES[which]()
    assert notes
    assert len(notes) <= 6
    limit = 3 * LONGEST if which == "fronts" else LONGEST  # one sentence of four parts, each with its own variants
    assert max(map(len, notes)) <= limit, max(notes, key=len)


def test_a_stretch_is_told_as_longer_or_shorter_times() -> None:
    assert Stretch.even(1.11).words == "all times 11 % longer"
    assert Stretch.even(0.9).words == "all times 10 % shorter"
