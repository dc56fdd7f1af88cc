"""docs/metrics.md defines every figure of summary.json."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import servesim
from servesim.experiments.metrics import METRICS
from tests.support.documents import ROOT

STATED = {"provenance", "scenario", "notes", "timing"}
"""What made a result: named as a whole."""
BY_NAME = {"classes", "tenants", "finish_reasons", "rejection_reasons", "abort_reasons", "slo_classes_ms"}
"""Their keys are names of the run's own."""
STATISTICS = {"p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99"}
"""Told as a range."""
SECTIONS = {"requests", "throughput", "latency_ms", "goodput", "engine", "kv", "prefix_cache", "price", "speculation"}


def names(figures: dict[str, Any]) -> Iterator[str]:
    for key, value in figures.items():
        if key not in SECTIONS | STATISTICS:
            yield key
        if isinstance(value, dict) and key not in STATED | BY_NAME:
            yield from names(value)


def test_every_metric_of_comparisons_is_defined() -> None:
    defined = set(re.findall(r"`([\w.]+)`", (ROOT / "docs" / "metrics.md").read_text()))
    asked = {name.rpartition("_")[0] if metric.latency else name for name, metric in METRICS.items()}
    assert len(asked) > 12
    assert asked <= defined, asked - defined


def test_every_figure_is_defined() -> None:
    result = servesim.simulate(
        trace="synth:rate=5,prompt=100,output=20",
        requests=40,
        model="llama-3.1-8b",
        gpu="h200",
        slo="ttft:500,tpot:50,e2el:9000",
        speculation="eagle3",
        shape=["label:share=0.5,slo_class=gold,tenant=x"],
        slo_classes={"gold": "ttft:200"},
    )
    defined = set(re.findall(r"`([\w.]+)`", (ROOT / "docs" / "metrics.md").read_text()))
    figures = set(names(result.summary))
    assert len(figures) > 70
    assert figures <= defined, figures - defined
