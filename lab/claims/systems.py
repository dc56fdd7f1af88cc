"""Systems and techniques named in the texts: each system serves a load, and each technique is compared with its
absence."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from math import nan
from pathlib import Path
from typing import Any

from servesim.hardware import ModelSpec
from servesim.run.presets import engine_presets
from servesim.run.result import Result
from servesim.run.simulate import simulate

from . import Given, Outcome, Row, amount, experiment
from .crossed import merged, model_file
from .outcome import COURSE

METRICS = {
    "tpot": ("time of a token", "ms"),
    "ttft": ("time to the first token", "ms"),
    "kv": ("KV of a token on each GPU", "kB"),
    "weights": ("weights", "GB"),
}
"""Purposes of techniques, mapped to their description and unit; lower is better."""


@experiment(
    "named-systems",
    group="systems",
    claim="Engines, drafters, weight formats, attentions and kernels that the texts name: each works",
    source=COURSE,
)
def named_systems(given: Given) -> Outcome:
    """Check that every engine serves the same requests, and that every technique beats the same server without it."""
    outcome = Outcome()
    for name, settings in given["engines"].items():
        _engine(outcome, name, {**given["base"], **settings})
    with tempfile.TemporaryDirectory(prefix="servesim-") as scratch:
        for name, technique in given["techniques"].items():
            _technique(outcome, name, technique, given["base"], Path(scratch))
    outcome.add(
        Row(
            "FlashDecoding",
            "works",
            "-",
            "out of reach",
            "the measured decode kernels split long contexts this way; there is no table without, to switch it off",
        )
    )
    outcome.notes.append(
        "an engine works if every request is answered in full; a technique, if what it is for is less than without it"
    )
    return outcome


def _engine(outcome: Outcome, name: str, settings: Mapping[str, Any]) -> None:
    run = simulate(settings)
    preset = engine_presets()[settings["preset"]]
    speed = amount(run.summary["throughput"]["output_throughput"], "output tokens/s")
    text = f"{answered(run)} of {len(run.requests)} answered, {speed}"
    note = f"preset {settings['preset']}, {preset['version']}; rests on {preset['rests_on']}"
    outcome.holds(name, "works", text, answered(run) == len(run.requests), note=note)


def answered(run: Result) -> int:
    """Return the number of requests with a complete output."""
    return int(run.summary["requests"]["completed"])


def _technique(
    outcome: Outcome, name: str, technique: Mapping[str, Any], base: Mapping[str, Any], scratch: Path
) -> None:
    words, unit = METRICS[technique["for"]]
    common = merged(base, technique.get("base", {}))
    before, after = (
        measured({**settings, "model": model_file(settings["model"], scratch)}, technique["for"])
        for settings in (merged(common, technique.get("without", {})), merged(common, technique["set"]))
    )
    text = f"{words} {amount(after, unit)}, {amount(before, unit)} without"
    outcome.holds(name, "works", text, after < before, note=technique.get("note", ""))


def measured(settings: Mapping[str, Any], metric: str) -> float:
    """Return the mean latency in ms, KV per token in kB or weights in GB of a server that answers every request;
    otherwise return NaN, which is not less than any number."""
    run = simulate(settings)
    if answered(run) != len(run.requests):
        return nan
    if metric == "weights":
        return ModelSpec.load(settings["model"]).weight_bytes(settings.get("dtype", "bf16")) / 1e9
    if metric == "kv":
        memory = run.summary["kv"]
        return float(memory["capacity_bytes_per_gpu"] / memory["capacity_tokens"] / 1e3)
    return float(run.summary["latency_ms"][metric]["mean"])
