"""Runs that have the sections which features add to a summary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import servesim
from servesim.contracts.feature import features

SHARED = {"model": "llama-3.1-8b", "gpu": "h200", "trace": "synth:rate=40,prompt=300,output=20", "requests": 60}
ADDED: dict[str, tuple[str, dict[str, Any]]] = {
    "disaggregation": ("handoff", {"pd": "1x1:1x1"}),
    "router_view": ("view_lag", {"replicas": 2, "router": "least-outstanding", "cluster": {"report_every_s": 0.1}}),
    "upgrades": ("failures", {"cluster": {"failures": ["upgrade:at=0.3,startup=0.1,surge=1"]}}),
    "offload": ("offload", {"offload": "lmcache:cpu=1GiB,disk=2GiB,disk_gb_s=5"}),
    "classes": ("classes", {"slo": {"ttft": 500}, "slo_classes": {"gold": {"ttft": 300}}}),
    "tenants": ("classes", {}),
    "bursts": ("bursts", {"shape": ["burst:at=0.3,for=0.5,times=3"], "burst_replicas": True}),
    "intervals": ("bars", {"propagate": True}),
}
"""Sections by the feature that adds them and a run that has them."""


def run_with(section: str, tmp_path: Path) -> servesim.Result:
    feature, settings = ADDED[section]
    if feature not in features.names():
        pytest.skip(f"{feature} is not installed")
    if feature == "classes":
        rows = [f"{i * 50},300,20,{'gold' if i % 2 else 'lead'},{'ab'[i % 3 % 2]}" for i in range(30)]
        (tmp_path / "t.csv").write_text("\n".join(["arrival_ms,prompt_tokens,output_tokens,class,tenant", *rows, ""]))
        settings = settings | {"trace": str(tmp_path / "t.csv"), "requests": None}
    return servesim.simulate({**SHARED}, **settings)
