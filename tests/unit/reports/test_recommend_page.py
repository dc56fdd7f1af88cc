"""The page of a recommendation: the command comes first, then what the choice rests on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from servesim.reports.capacity_page import page
from tests.unit.reports.test_capacity_page import document, row

POINT = {"gpu": "h100", "gpus": 1, "replicas": 1, "rate": 4.0, "usd_per_hour": 3.0, "usd_per_million_tokens": 0.1,
         "ms": 170.0, "headroom": 0.0}  # fmt: skip
FOUND: dict[str, Any] = {
    "aim": "price per request",
    "first": "cheap",
    "settings": {"gpu": "h100"},
    "runner_up": {"label": "dear", "price_ratio": 1.25, "says": "dear costs 25 % more per request"},
    "published": None,
    "miss": {"label": "tight <b>", "price_ratio": 0.8, "says": "tight <b> at 20 % less misses the SLO"},
    "knobs": [
        {
            "key": "dtype",
            "value": "fp8",
            "price_ratio": 1.5,
            "at_least": True,
            "share": 0.75,
            "without": "the best found costs at least 50 % more",
        },
        {
            "key": "tp",
            "value": None,
            "price_ratio": None,
            "at_least": False,
            "share": None,
            "without": "the SLO is missed at any load",
        },
    ],
    "needs": ["fp8: check the quality of the answers with `my <task>`"],
    "changes": ["below $1.20 per L40S-hour, dear is cheaper"],
    "measure": [],
    "not_searched": [{"keys": ["pp"], "says": "pipeline parallelism"}],
    "run": {
        "command": "vllm serve m --max-num-seqs 256",
        "lost": {"replicas": 2, "router": "llm-d"},
        "forms": ["command", "compose"],
        "files": {"run.sh": "#!/bin/sh\nvllm serve m --max-num-seqs 256", "compose.yaml": "services: {}"},
    },
    "front": {
        "latency": "ttft_p99",
        "points": [
            {**POINT, "label": "cheap", "on": True},
            {**POINT, "label": "cheap", "on": True, "usd_per_hour": 6.0, "ms": 90.0, "headroom": 1.0},
            {**POINT, "label": "behind", "on": False, "usd_per_hour": 6.0, "ms": 95.0},
        ],
    },
    "search": {"structures": 4, "refused": 1, "screened": 3, "improved": 7, "runs": 20},
}


def html(folder: Path, found: dict[str, Any] | None) -> str:
    told = document(row("cheap", 10.0, 1.0), row("dear", 10.0, 3.0)) | {"recommendation": found}
    (folder / "capacity.json").write_text(json.dumps(told))
    return page(folder).html()


def test_the_command_stands_first_and_whole(tmp_path: Path) -> None:
    shown = html(tmp_path, FOUND)
    assert '<pre tabindex="0">vllm serve m --max-num-seqs 256</pre>' in shown
    assert shown.index("What to run") < shown.index("Why this one") < shown.index(">Deployments<")
    assert "The command does not hold router=llm-d." in shown
    assert "The command starts one of 2 replicas." in shown
    assert "deploy/compose.yaml" in shown
    assert "--form compose writes" in shown


def test_every_reason_is_there_and_no_empty_list(tmp_path: Path) -> None:
    shown = html(tmp_path, FOUND)
    for words in (
        "runner-up",
        "misses the SLO",
        "at least 50 % more",
        "75 %",
        "check the quality",
        "L40S-hour",
        "pipeline",
    ):
        assert words in shown
    assert "<code>my &lt;task&gt;</code>" in shown
    assert "tight &lt;b&gt;" in shown
    assert "To be surer" not in shown
    assert "published formats" not in shown


def test_a_deployment_that_no_command_starts_has_files_instead(tmp_path: Path) -> None:
    run = {"command": None, "lost": {}, "forms": ["compose"], "files": {"compose.yaml": "services: {}"}}
    shown = html(tmp_path, FOUND | {"run": run})
    assert "No single command starts this deployment" in shown
    assert "services: {}" in shown


def test_the_front_has_a_row_for_each_point_on_it(tmp_path: Path) -> None:
    shown = html(tmp_path, FOUND)
    assert "Pareto front of price, TTFT p99 and headroom: 2 of 3 measured" in shown
    assert "170 ms" in shown
    assert "100 %" in shown
    assert "behind" not in shown
    older = {key: value for key, value in FOUND.items() if key != "front"}
    assert "Pareto front of price, TTFT p99 and headroom" not in html(tmp_path, older)


def test_nothing_that_carries_has_no_such_section(tmp_path: Path) -> None:
    assert "What to run" not in html(tmp_path, None)
