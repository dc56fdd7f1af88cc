"""Scenarios and results as each released version wrote them, which every later one reads (tests/compatibility).

`python -m tests.support.compatibility --store` runs the scenarios below and writes them with their results to the
folder of this version. A version that CHANGELOG.md has released is not written again without `--force`.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from servesim import __version__, simulate
from tests.support.documents import ROOT

STORED = ROOT / "tests" / "compatibility"
COMMON: dict[str, Any] = {"model": "llama-3.1-8b", "gpu": "h200", "requests": 24, "seed": 7}
SCENARIOS: dict[str, dict[str, Any]] = {
    "plain": {"trace": "synth:rate=20,prompt=300,output=40", "slo": "ttft:500,tpot:50"},
    "sessions": {"trace": "preset:mooncake-conversation", "offload": "cpu=16GiB"},
    "sglang": {"trace": "preset:mooncake-conversation", "preset": "sglang"},
    "pools": {
        "trace": "synth:rate=20,prompt=300,output=40",
        "pools": [
            {"name": "prompts", "role": "prefill", "replicas": 1},
            {"name": "answers", "role": "decode", "gpu": "h100", "replicas": 2},
        ],
        "slo": "ttft:p99<1s",
    },
    "routed": {
        "trace": "synth:rate=40,prompt=300,output=40",
        "replicas": 3,
        "router": "random",
        "cluster": {
            "report_every_s": 0.05,
            "failures": ["crash:replica=0,at=0.3,restart=1", "slow:replica=1,at=0.1,until=1,factor=3"],
        },
    },
    "scaled": {"trace": "synth:rate=20,prompt=300,output=40", "scaler": "keda:target=4,min=1,max=3"},
    "speculation": {
        "trace": "synth:rate=20,prompt=300,output=40",
        "speculation": "eagle3:k=3",
        "acceptance": "positions:marginal=0.73/0.52/0.36",
    },
    "classes": {
        "trace": "preset:azure-conv-2023",
        "slo": "ttft:500",
        "slo_classes": {"gold": "ttft:300"},
        "check": True,
    },
}
"""Scenarios whose results hold every part of a result that a reader may rely on."""
IS_NUMBER = (int, float)


def store(folder: Path) -> None:
    """Run SCENARIOS and write each with its result below `folder`, which is replaced."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, keys in SCENARIOS.items():
        case = folder / name
        case.mkdir(parents=True)
        scenario = COMMON | keys
        (case / "given.yaml").write_text(yaml.safe_dump(scenario, sort_keys=False), encoding="utf-8")
        simulate(scenario, out=case / "result")


BY_FILE = "kernel_tables.sha256"
"""End of the path of a map whose keys are names of files: those of the tables that a run uses."""


def kinds(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path and kind of each value of a summary: of numbers alike whether whole or not, none of null, and of
    the entries of a list one after the other."""
    if isinstance(value, Mapping):
        yield path, "mapping"
        for key, inner in () if path.endswith(BY_FILE) else value.items():
            yield from kinds(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, bool):
        yield path, "flag"
    elif isinstance(value, IS_NUMBER):
        yield path, "number"
    elif isinstance(value, str):
        yield path, "text"
    elif isinstance(value, list):
        yield path, "list"
    else:
        yield path, "null"


def missing(old: Any, new: Any) -> list[str]:
    """Return what a reader of `old` would miss in `new`: keys that are gone, and those of another kind; null is of
    every kind."""
    now = dict(kinds(new))
    absent = [f"{path} is gone" for path, _ in kinds(old) if path not in now]
    changed = [
        f"{path} was {kind}, is {now[path]}"
        for path, kind in kinds(old)
        if path in now and now[path] != kind and "null" not in (kind, now[path])
    ]
    return absent + changed


def released(version: str, changelog: str) -> bool:
    """Return whether CHANGELOG.md gives the version a date."""
    return re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changelog, flags=re.M) is not None


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", action="store_true", required=True)
    parser.add_argument("--force", action="store_true", help="write a released version again")
    parser.add_argument("--to", type=Path, default=STORED / __version__)
    parser.add_argument("--changelog", type=Path, default=ROOT / "CHANGELOG.md")
    asked = parser.parse_args(arguments)
    if asked.to.exists() and not asked.force and released(__version__, asked.changelog.read_text(encoding="utf-8")):
        sys.exit(f"error: {__version__} is released: its files are what it wrote (--force writes them again)")
    store(asked.to)


if __name__ == "__main__":
    main()
