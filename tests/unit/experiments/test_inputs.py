"""The address of a run changes with every file that its scenario refers to."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

import servesim
from servesim.calibrate import tables as shipped
from servesim.contracts import schedulers
from servesim.experiments.input_files import digests_in, input_digests
from servesim.experiments.store import address_of
from servesim.hardware import model as bundled
from servesim.run.scenario import Scenario
from servesim.run.simulate import simulate

TABLES = Path(shipped.__path__[0])
MODEL = Path(bundled.__file__).parent / "models" / "llama-3.2-1b.json"
POLICY = "from servesim.policies.{package}.{module} import {name}\n\n\nclass Mine({name}):\n    pass\n"
ROWS = '{{"timestamp": {}, "input_length": 200, "output_length": 9}}\n'


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """A file of every kind, by what it is."""
    found = {
        "trace": tmp_path / "trace.jsonl",
        "joined": tmp_path / "other.jsonl",
        "config": tmp_path / "model" / "config.json",
        "draft": tmp_path / "draft" / "config.json",
        "gpu": tmp_path / "gpu.yaml",
        "host": tmp_path / "host.yaml",
        "recorded": tmp_path / "right.jsonl",
        "measured": tmp_path / "accepted.yaml",
        "tables": tmp_path / "tables" / "gemm.parquet",
    }
    for name, path in found.items():
        path.parent.mkdir(exist_ok=True)
        if name in ("trace", "joined"):
            path.write_text("".join(ROWS.format(100 * i) for i in range(5)))
        elif name in ("config", "draft"):
            shutil.copy(MODEL, path)
    (tmp_path / "model" / "weights.bin").write_bytes(b"large")
    gpu = servesim.hardware.gpu._gpus()["h200"]
    found["gpu"].write_text(yaml.safe_dump(gpu))
    shutil.copy(next(iter(sorted((TABLES / "host").glob("*.yaml")))), found["host"])
    found["recorded"].write_text('{"row": 0, "right": "1101"}\n')
    shutil.copy(next(iter(sorted((TABLES / "acceptance").glob("*.yaml")))), found["measured"])
    for path in sorted((TABLES / str(gpu["tables"])).glob("*.parquet")):
        shutil.copy(path, found["tables"].parent / path.name)
    found["tables"] = sorted(found["tables"].parent.glob("*.parquet"))[0]
    for kind, (package, module, name) in {
        "scheduler": ("scheduling", "vllm", "Vllm"),
        "kv": ("kv", "paged", "Paged"),
        "router": ("routing", "round_robin", "RoundRobin"),
        "speculation": ("speculation", "eagle", "Eagle3"),
    }.items():
        found[kind] = tmp_path / f"{kind}.py"
        found[kind].write_text(POLICY.format(package=package, module=module, name=name))
    return found


def settings(files: dict[str, Path], acceptance: str) -> dict[str, Any]:
    return {
        "trace": str(files["trace"]),
        "shape": [f"mix:weight=0.5,trace={files['joined']}"],
        "model": str(files["config"].parent),
        "gpu": str(files["gpu"]),
        "host": str(files["host"]),
        "kernel_tables": str(files["tables"].parent),
        "scheduler": f"{files['scheduler']}:Mine",
        "kv": f"{files['kv']}:Mine",
        "router": f"{files['router']}:Mine",
        "speculation": f"draft-model:model={files['draft'].parent}" if acceptance == "recorded" else
        f"{files['speculation']}:Mine",
        "acceptance": f"recorded:path={files['recorded']}" if acceptance == "recorded" else
        f"measured:table={files['measured']}",
    }  # fmt: skip


@contextmanager
def opened(folder: Path) -> Iterator[set[str]]:
    """Files in a folder that are opened meanwhile."""
    found: set[str] = set()
    listening = True

    def hook(event: str, values: tuple[Any, ...]) -> None:
        if listening and event == "open" and str(values[0]).startswith(f"{folder}/"):
            found.add(str(values[0]))

    sys.addaudithook(hook)
    yield found
    listening = False


@pytest.mark.parametrize("acceptance", ["recorded", "measured"])
def test_the_address_changes_with_every_file_by_itself(acceptance: str, files: dict[str, Path]) -> None:
    asked = settings(files, acceptance)
    used = {
        kind: path
        for kind, path in files.items()
        if kind not in (("measured", "speculation") if acceptance == "recorded" else ("recorded", "draft"))
    }
    seen = {address_of(asked)}
    for kind, path in used.items():
        path.write_bytes(path.read_bytes() + b"\n")
        address = address_of(asked)
        assert address not in seen, kind
        seen.add(address)
    (files["config"].parent / "weights.bin").write_bytes(b"other weights")
    assert address_of(asked) in seen


@pytest.mark.medium
@pytest.mark.parametrize("acceptance", ["recorded", "measured"])
def test_every_file_that_a_run_opens_is_part_of_its_address(
    acceptance: str, files: dict[str, Path], tmp_path: Path
) -> None:
    asked = settings(files, acceptance)
    with opened(tmp_path) as found:
        simulate(asked)
    own = {name for name in found if "__pycache__" not in name}
    assert {str(files["trace"]), str(files["draft" if acceptance == "recorded" else "measured"])} <= own
    assert own <= set(input_digests(Scenario.of(asked)))


def test_an_installed_policy_counts_with_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "theirs"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "policy.py").write_text(POLICY.format(package="scheduling", module="vllm", name="Vllm"))
    monkeypatch.syspath_prepend(str(tmp_path))
    from importlib import import_module

    monkeypatch.setitem(schedulers._classes, "theirs", import_module("theirs.policy").Mine)
    asked = {"trace": "preset:azure-conv-2023", "model": "llama-3.2-1b", "gpu": "h200", "scheduler": "theirs"}
    before = address_of(asked)
    (package / "helper.py").write_text("X = 1\n")
    assert address_of(asked) != before


def test_a_folder_that_happens_to_be_called_like_a_policy_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"trace": "preset:azure-conv-2023", "model": "llama-3.2-1b", "gpu": "h200", "scheduler": "vllm"}
    before = address_of(asked)
    monkeypatch.chdir(tmp_path)
    for name in ("vllm", "h200", "paged", "auto", "none"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    assert address_of(asked) == before
    assert json.dumps(input_digests(Scenario.of(asked))) == "{}"


def test_the_files_of_each_pool_and_the_code_in_a_policys_parameters_are_inputs(tmp_path: Path) -> None:
    inner, outer, terms = (tmp_path / name for name in ("inner.py", "outer.py", "terms.yaml"))
    for path in (inner, outer):
        path.write_text(POLICY.format(package="scheduling", module="vllm", name="Vllm"))
    shutil.copy(next(iter(sorted((TABLES / "host").glob("*.yaml")))), terms)
    settings = {
        "trace": "synth:",
        "model": "llama-3.2-1b",
        "gpu": "h200",
        "router": f"circuit-breaker:router={inner}:Mine",
        "pools": ["a:replicas=1", f"b:replicas=1,scheduler={outer}:Mine,host={terms}"],
    }
    assert {inner, outer, terms} <= {Path(name) for name in input_digests(Scenario.of(settings))}
    before = address_of(settings)
    for path in (inner, outer, terms):
        path.write_text(path.read_text() + "\n# changed\n")
        changed = address_of(settings)
        assert changed != before, path.name
        before = changed


def test_the_code_that_a_policy_s_name_holds_is_an_input(tmp_path: Path) -> None:
    code = tmp_path / "mine.py"
    code.write_text("x = 1\n")
    settings = {"base": {"scheduler": f"{code}:Mine", "kv": {"name": f"paged:policy={code}:Other"}}}
    first = digests_in(settings)
    assert list(first) == [str(code)]
    code.write_text("x = 2\n")
    assert digests_in(settings) != first
