"""The help of every command is complete, and its examples run."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import typer

from servesim.cli import app as cli
from tests.docs.test_documents import unknown
from tests.support.documents import ROOT

ELSEWHERE = {
    "servesim calibrate all": "needs torch: tests/torch, tests/unit/calibrate/test_chain.py",
    "servesim calibrate profile": "needs torch: tests/torch",
    "servesim calibrate steps": "needs torch: tests/torch",
    "servesim calibrate engine": "needs torch: tests/torch",
    "servesim calibrate acceptance": "needs torch and a model: tests/torch",
    "servesim calibrate host": "needs recordings: tests/unit/cost/test_host_terms.py",
    "servesim calibrate import": "needs profiles: tests/unit",
    "servesim calibrate report": "half a minute: tests/unit/calibrate/test_table_quality.py",
    "servesim doctor": "tests/unit/cli/test_known.py",
    "servesim measure": "needs a server: tests/unit/experiments/measure",
    "servesim accuracy": "minutes: tests/unit/experiments/accuracy, tests/validation/test_silicon_cells.py",
    "servesim calibrate intervals": "needs a score: tests/unit/lab/intervals/test_fit.py",
    "servesim calibrate left-out": "half a minute: tests/unit/calibrate/test_table_accuracy.py",
    "servesim calibrate accuracy": "half a minute: tests/unit/calibrate/test_table_accuracy.py",
    "servesim explore": "serves until it is interrupted: tests/unit/reports/test_explore.py",
    "servesim serve": "serves until it is interrupted: tests/unit/live/test_server.py",
    "servesim recommend": "minutes: docs/recommend.md, tests/unit/experiments",
    "servesim reproduce all": "minutes",
    "servesim reproduce pagedattention": "half a minute: tests/validation",
    "servesim sweep grid.yaml": "needs the extra search: tests/unit/experiments/test_sweep.py",
}
"""Beginnings of examples that are not run here, and why."""
CHEAPER = {
    "servesim run": "--requests 20",
    "servesim compare": "--requests 20 --replicates 2 --jobs 1",
    "servesim sweep": "--requests 20 --jobs 1",
    "servesim capacity": "--requests 20 --replicates 2 --jobs 1 --tolerance 0.2",
    "servesim worth": "--requests 20 --replicates 2 --jobs 1 --tolerance 0.5 --no-intervals",
    "servesim trace fetch": "--dry-run",
}
"""Options that make an example cheap, or keep it from the network."""
SMALL = "trace: trace.csv\nmodel: llama-3.1-8b\ngpu: h200\n"


def walk(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every command and group, by how it is called."""
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from walk(inner, f"{path} {name}")


COMMANDS = dict(walk(typer.main.get_command(cli.app), "servesim"))
EXAMPLE = re.compile(r"^(?:Example:)? *(servesim [^\n:]+ [^\n]+)$", re.M)
EXAMPLES = {
    path: [" ".join(found.split()) for found in EXAMPLE.findall(command.epilog or "")]
    for path, command in COMMANDS.items()
}
RUN = sorted({e for several in EXAMPLES.values() for e in several if not e.startswith(tuple(ELSEWHERE))})


@pytest.mark.parametrize("path", [path for path, command in COMMANDS.items() if not hasattr(command, "commands")])
def test_every_command_says_what_it_does_with_an_example(path: str) -> None:
    command = COMMANDS[path]
    assert command.help
    assert any(example.startswith(path) for example in EXAMPLES[path])
    for parameter in command.params:
        assert getattr(parameter, "help", None), parameter.name


def test_every_example_names_what_exists() -> None:
    for several in EXAMPLES.values():
        for example in several:
            assert unknown(example) is None, example


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that examples name."""
    folder = tmp_path_factory.mktemp("help")
    for name in ("scenario", "a", "b"):
        (folder / f"{name}.yaml").write_text(SMALL + ("" if name != "b" else "kv: paged\n"))
    rows = "".join(f"{250_000_000 * i},{100 + i},{20 + i}\n" for i in range(40))
    (folder / "trace.csv").write_text(f"arrival_ns,prompt_len,output_len\n{rows}")
    shutil.copy(Path(__file__).parents[1] / "support" / "energy.py", folder / "energy.py")
    (folder / "my_policy.py").write_text(
        "from servesim.policies.scheduling.vllm import Vllm\n\n\nclass MyScheduler(Vllm):\n    '''Mine.'''\n"
    )
    tables = ROOT / "calibrate" / "tables"
    (folder / "tables").symlink_to(tables / "h200")
    (folder / "log").mkdir()
    (folder / "measured").mkdir()
    for name in ("my_terms.yaml", "vllm-0.23-h100.yaml", "log/host.yaml"):
        shutil.copy(tables / "host" / "vllm-0.23-h100.yaml", folder / name)
    shutil.copy(tables / "acceptance" / "smollm2-ngram.yaml", folder / "measured" / "ngram.yaml")
    call(folder, "servesim run scenario.yaml --out result")
    call(folder, "servesim export result --to vllm-bench -o bench.json")
    recorded(folder)
    return folder


def recorded(folder: Path) -> None:
    """Runs as a client recorded them, made of a simulated one."""
    requests = pd.read_parquet(folder / "result" / "requests.parquet")
    log = pd.DataFrame(
        {
            "send_time_us": requests.arrival_ns // 1000,
            "first_chunk_time_us": requests.first_token_ns // 1000,
            "last_chunk_time_us": requests.last_token_ns // 1000,
            "server_input_tokens": requests.prompt_len,
            "output_tokens": requests.output_len,
        }
    )
    log.to_csv(folder / "run.csv", index=False)
    settings = json.dumps({"model": "llama-3.1-8b", "gpu": "h200", "engine": "vllm 0.23.0"})
    for name in ("recorded", "log"):
        (folder / name).mkdir(exist_ok=True)
        shutil.copy(folder / "run.csv", folder / name)
        (folder / name / "server_config.json").write_text(settings)


def call(folder: Path, command: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", shlex.split(command, comments=True))
        assert cli._guarded() == 0, command


@pytest.mark.parametrize("example", RUN)
def test_examples_run(example: str, folder: Path) -> None:
    extra = next((options for begins, options in CHEAPER.items() if example.startswith(begins)), "")
    if "--trace" not in example:
        extra = extra.replace("--requests 20", "")
    call(folder, f"{example.partition('#')[0]} {extra}")
