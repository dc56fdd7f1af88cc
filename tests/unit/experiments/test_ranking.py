"""Ranking within a rate, and stability that is monotone in it."""

from __future__ import annotations

from typing import Any

import pytest

import servesim
from servesim.experiments.metrics import METRICS
from servesim.experiments.ranking import best_by_rate, by_rate, judge_stability, rate_of


def variant(rate: Any, unstable: int = 0, decided: int = 1, gpu: str = "h200", value: float = 1.0) -> dict[str, Any]:
    axes = {"gpu": gpu, "rate": rate}
    return {
        "label": f"{gpu} / rate={rate}",
        "axes": axes,
        "status": "ok",
        "cells": ["a"],
        "unstable": unstable,
        "decided": decided,
        "values": {"e2el_mean": value},
    }


def test_what_is_unstable_at_a_rate_is_so_at_every_higher_one() -> None:
    runs = [variant(30), variant(20, unstable=1), variant("10", decided=0), variant(5), variant(40, gpu="h100")]
    judge_stability(runs)
    assert [v["stability"] for v in runs] == ["unstable", "unstable", "undecided", "stable", "stable"]


def test_a_run_that_failed_has_no_stability() -> None:
    failed = variant(3) | {"status": "failed"}
    judge_stability([failed])
    assert failed["stability"] is None


def test_the_best_is_sought_within_a_rate() -> None:
    runs = [variant(1, value=5.0), variant(1, gpu="h100", value=4.0), variant(9, value=7.0), variant(9, gpu="h100"),
            variant(20, value=1.0)]  # fmt: skip
    found = best_by_rate(runs, METRICS["e2el_mean"])
    assert [(best["rate"], best["label"]) for best in found] == [(1, "h100 / rate=1"), (9, "h100 / rate=9")]
    assert list(by_rate(runs)) == [1.0, 9.0, 20.0]
    assert rate_of(variant("3x")) == 3.0


def test_without_rates_there_is_one_best() -> None:
    runs = [variant(1), variant(2, value=0.5)]
    for v in runs:
        del v["axes"]["rate"]
    assert [best["label"] for best in best_by_rate(runs, METRICS["e2el_mean"])] == [runs[1]["label"]]


def test_a_sweep_crowns_no_empty_server() -> None:
    asked: dict[str, Any] = {"trace": "synth:rate=1,prompt=600,output=20", "requests": 40, "model": "llama-3.2-1b"}
    document = servesim.sweep(**asked, gpu="h200", rate=[1, 20], jobs=1).attrs["document"]
    assert document["best"] is None
    assert document["best_by_rate"] == []
    both = servesim.sweep(**asked, gpu="h200,l40s", rate=[1, 20], jobs=1).attrs["document"]
    assert [best["rate"] for best in both["best_by_rate"]] == [1, 20]
    assert both["best"] == both["best_by_rate"][-1]
    assert all(best["label"].startswith("h200") for best in both["best_by_rate"])


@pytest.mark.parametrize("rate", ["1", "3x"])
def test_rates_as_text_are_numbers(rate: str) -> None:
    assert rate_of(variant(rate)) == float(rate.removesuffix("x"))
