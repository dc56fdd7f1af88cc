"""A scenario that sets the keys of a feature which is not installed is an error of one line, and never runs without."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from servesim.contracts.feature import Feature, installed

SHARED: dict[str, Any] = {"trace": "synth:rate=20,prompt=50,output=5", "requests": 5, "model": "llama-3.2-1b"}
CRASH = "crash:replica=0,at=1,restart=1"
PREFILL = [{"name": "a", "role": "prefill"}, {"name": "b", "role": "decode"}]
SETS: dict[str, list[tuple[str, dict[str, Any], list[str]]]] = {
    "bars": [
        ("intervals", {"intervals": False}, ["--no-intervals"]),
        ("propagate", {"propagate": True}, ["--propagate"]),
    ],
    "bursts": [("burst_replicas", {"burst_replicas": True}, ["--burst-replicas"])],
    "classes": [
        ("slo_classes", {"slo_classes": {"gold": "ttft:300"}}, ["--set", "slo_classes.gold=ttft:300"]),
        ("slo_classes", {"slo_classes": {"gold": "ttft:p99<1s"}}, ["--set", "slo_classes.gold=ttft:p99<1s"]),
        (
            "slo_class_percentiles",
            {"slo_class_percentiles": {"gold": {"ttft": 0.99}}},
            ["--set", "slo_class_percentiles.gold.ttft=0.99"],
        ),
    ],
    "data_parallel": [("dp", {"dp": 2, "model": "qwen3-30b-a3b"}, ["--dp", "2", "--model", "qwen3-30b-a3b"])],
    "failures": [
        ("cluster.failures", {"cluster": {"failures": [CRASH]}}, ["--cluster.failures", CRASH]),
        ("cluster.detection_s", {"cluster": {"detection_s": 1}}, ["--set", "cluster.detection_s=1"]),
        ("cluster.gpus_per_node", {"cluster": {"gpus_per_node": 4}}, ["--cluster.gpus-per-node", "4"]),
        ("cluster.reroutes", {"cluster": {"reroutes": 1}}, ["--cluster.reroutes", "1"]),
        ("cluster.migrations", {"cluster": {"migrations": 1}}, ["--cluster.migrations", "1"]),
        ("cluster.reroute_delay_s", {"cluster.reroute_delay_s": 1}, ["--set", "cluster.reroute_delay_s=1"]),
    ],
    "handoff": [
        ("pd", {"pd": "1x1:1x1"}, ["--pd", "1x1:1x1"]),
        ("handoff", {"handoff": "vllm-nixl:http_ms=2"}, ["--handoff", "vllm-nixl:http_ms=2"]),
        ("disaggregate", {"disaggregate": "llm-d"}, ["--disaggregate", "llm-d"]),
        ("pools.role", {"pools": PREFILL}, ["--pools", "a:role=prefill", "--pools", "b:role=decode"]),
    ],
    "offload": [("offload", {"offload": "vllm:cpu=8GiB"}, ["--offload", "vllm:cpu=8GiB"])],
    "scaling": [
        ("scaler", {"scaler": "keda:target=4"}, ["--scaler", "keda:target=4"]),
        ("start", {"start": {"compile_s": 1}}, ["--set", "start.compile_s=1"]),
        ("scaler", {"pools": [{"name": "a", "scaler": "keda:target=4"}]}, ["--pools", "a:scaler=keda"]),
    ],
    "view_lag": [
        ("cluster.report_every_s", {"cluster": {"report_every_s": 1}}, ["--cluster.report-every-s", "1"]),
        ("cluster.report_lag_s", {"cluster.report_lag_s": 1}, ["--set", "cluster.report_lag_s=1"]),
    ],
}
"""By feature: a key of its own, or that it claims, and how Python and the command line set it."""
WITHOUT = """
import io, json, pkgutil, sys
from contextlib import redirect_stderr, redirect_stdout

gone, shared, cases = json.load(sys.stdin)
found = pkgutil.iter_modules
pkgutil.iter_modules = lambda path=None, prefix="": (m for m in found(path, prefix) if m.name != gone)
import servesim
from servesim.__main__ import main
from servesim.errors import UserError

outcomes = []
for settings, options in cases:
    try:
        servesim.simulate(**{**shared, "gpu": "h200", **settings})
        said = "it runs"
    except UserError as error:
        said = str(error)
    typed = [part for key, value in shared.items() for part in (f"--{key}", str(value))]
    sys.argv, told, code = ["servesim", "run", *typed, "--gpu", "h200", *options], io.StringIO(), 0
    try:
        with redirect_stderr(told), redirect_stdout(io.StringIO()):
            main()
    except SystemExit as end:
        code = end.code
    outcomes.append((said, code, told.getvalue()))
assert not any(name.startswith(f"servesim.features.{gone}") for name in sys.modules)
print(json.dumps(outcomes))
"""
pytestmark = pytest.mark.feature("*")  # which takes one away after another


def test_the_keys_here_are_all_that_features_have() -> None:
    for feature in installed():
        options = [*feature.Options.model_fields]
        assert {key for key, _, _ in SETS[feature.name]} == {*feature.keys(), *feature.claims, *options}


@pytest.mark.parametrize("feature", installed(), ids=lambda feature: feature.name)
def test_without_its_feature_a_key_is_an_error_of_one_line(feature: Feature) -> None:
    cases = [(settings, options) for _, settings, options in SETS[feature.name]]
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT],
        input=json.dumps((feature.name, SHARED, cases)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    for (key, _, _), (said, code, told) in zip(SETS[feature.name], json.loads(run.stdout), strict=True):
        assert said != "it runs", key
        assert "\n" not in said
        assert code == 2, key
        assert told.startswith("error: ")
        assert told.count("\n") == 1
        name = key.rpartition(".")[2]
        assert name in said.replace("-", "_"), said
        assert name in told.replace("-", "_"), told
