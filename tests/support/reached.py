"""Tests that execute each line of the product, with their times, for tests.support.mutants.

Each folder of tests is run once with coverage on a copy of the packages. What a file of it reached is kept in the
scratch folder until the file, or the product, changes.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import shutil
import subprocess
import sys
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from tests.support.mutations import ROOT

OUTSIDE = ("policies", "traces", "calibrate", "reports")
"""Folders that are installed as packages of servesim."""
TESTS = ("tests/unit", "tests/conformance", "tests/property", "tests/validation")
LEFT_OUT = tuple(
    f"tests/unit/tools/test_{name}.py" for name in ("bench_live", "bench_peers", "benchmarks", "guard_of_speed")
)
"""Tests that import the plugin of benchmarks, and reach nothing else."""
PYTEST = (
    *("-q", "-p", "no:benchmark", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=no"),
    *("--hypothesis-profile=dev", "--no-header"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # plugins are imported before the fork
)
START = """
import os
import sys
sys.path.insert(0, sys.argv[1])
os.environ["PYTHONPATH"] = sys.argv[1]  # for the commands that tests start
import servesim  # of the copy, before pytest puts the checkout first
import pytest
sys.exit(pytest.main(sys.argv[2:]))
"""


def product() -> list[str]:
    """Return the modules of the product."""
    return [str(path.relative_to(ROOT)) for name in ("servesim", *OUTSIDE) for path in _files(ROOT / name)]


def _files(place: Path) -> list[Path]:
    return sorted(place.rglob("*.py"))


def staged(folder: Path) -> Path:
    """Copy the packages to `folder` under the names they are installed by; data are linked. Return the folder."""
    package = folder / "servesim"
    if not package.exists():
        ignored = shutil.ignore_patterns("__pycache__", "tables")
        shutil.copytree(ROOT / "servesim", package, ignore=ignored, ignore_dangling_symlinks=True)
        for name in OUTSIDE:
            shutil.copytree(ROOT / name, package / name, ignore=ignored)
        for found in ROOT.glob("*/**/tables"):
            if found.is_dir() and found.parts[len(ROOT.parts)] in (*OUTSIDE, "servesim"):
                place = found.relative_to(ROOT)
                target = package / (place if place.parts[0] != "servesim" else Path(*place.parts[1:]))
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(found)
    for module in product():  # those that have changed since
        text = (ROOT / module).read_bytes()
        place = placed(folder, module)
        if not place.exists() or place.read_bytes() != text:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(text)
    return folder


def placed(folder: Path, module: str) -> Path:
    """Return where a module lies in the copy."""
    return folder / module if module.startswith("servesim/") else folder / "servesim" / module


class Reached:
    """What each test reaches, and how long it takes."""

    def __init__(self, folder: Path) -> None:
        self.seconds: dict[str, float] = {}
        self._folder = folder
        whole = hashlib.sha256(b"".join((ROOT / module).read_bytes() for module in product())).hexdigest()
        files = {str(file.relative_to(ROOT)) for place in TESTS for file in (ROOT / place).rglob("test_*.py")}
        now = {file: _digest(whole, file) for file in sorted(files) if not file.startswith(LEFT_OUT)}
        kept = [json.loads(path.read_text()) for path in folder.glob("*.json")]
        known = {file for run in kept for file, digest in run["files"].items() if now.get(file) == digest}
        for _, tests in groupby((file for file in now if file not in known), lambda file: Path(file).parent):
            kept.append(self._run({file: now[file] for file in tests}))
        self._runs: dict[Path, set[str]] = {}
        """Data of runs, and the files whose tests are in it as they are."""
        for run in kept:
            current = {file for file, digest in run["files"].items() if now.get(file) == digest}
            self._runs[folder / run["data"]] = current
            fine = (test for test in run["seconds"] if test not in run["failed"])
            self.seconds.update((test, run["seconds"][test]) for test in fine if test.partition("::")[0] in current)
        self._lines = cache(self._lines_of)

    def _run(self, files: dict[str, str]) -> dict[str, Any]:
        """Run test files with coverage; return and keep the seconds of each test, and which fail: on these no mutant is
        tried."""
        tests = [*files]
        name = Path(tests[0]).parent.as_posix().replace("/", "-") + f"-{files[tests[0]]}"
        data = self._folder / f"{name}.coverage"
        settings = self._folder / "coverage.ini"
        settings.write_text(f"[run]\nsource = {self._folder / 'servesim'}\ndata_file = {data}\nparallel = false\n")
        command = [sys.executable, "-c", START, str(self._folder), *PYTEST, "-rfE", "-vv", "--durations=0"]
        command += ["--durations-min=0.0", "--cov", f"--cov-config={settings}", "--cov-context=test"]
        command += ["--cov-report=", *tests]
        data.unlink(missing_ok=True)
        # Compiled files are written here, where nothing is changed yet: mutants only read them.
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        if done.returncode not in (0, 1):
            raise SystemExit(f"tests cannot be run as they are:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        seconds: dict[str, float] = {}
        failed = []
        for line in done.stdout.splitlines():
            words = line.split(maxsplit=2)  # names of tests have blanks
            if len(words) == 3 and words[0].endswith("s") and words[1] in ("call", "setup") and "::" in words[2]:
                seconds[words[2]] = seconds.get(words[2], 0.0) + float(words[0][:-1])
            elif words and words[0] in ("FAILED", "ERROR"):
                failed.append(line.split(" - ")[0].split(" ", 1)[1])
        print(f"{tests[0]} and {len(tests) - 1} more: {sum(seconds.values()):.0f} s, {len(failed)} fail", flush=True)
        run = {"data": data.name, "files": files, "seconds": seconds, "failed": failed}
        (self._folder / f"{name}.json").write_text(json.dumps(run))
        return run

    def _lines_of(self, module: str) -> dict[int, set[str]]:
        import coverage

        by_line: dict[int, set[str]] = {}
        for path, current in self._runs.items():
            data = coverage.CoverageData(str(path))
            data.read()
            for line, found in data.contexts_by_lineno(str(placed(self._folder, module))).items():
                by_line.setdefault(line, set()).update(test for test in found if test.partition("::")[0] in current)
        return by_line

    def tests(self, module: str, line: int) -> list[str]:
        """Return the tests that execute a line, or the statement that goes on there, nearest and cheapest first; of one
        that the import executes those that execute any line of the module. Where a fixture does, all of the file."""
        lines = self._lines(module)
        if _imported(module, line):
            contexts = {context for found in lines.values() for context in found}
        else:
            contexts = next((lines[at] for at in range(line, max(line - 12, 0), -1) if lines.get(at)), set())
        named = {context.rpartition("|")[0] for context in contexts if context}
        files = {context.partition("::")[0] for context in contexts if context.endswith("|setup")}
        found = [test for test in self.seconds if test in named or test.partition("::")[0] in files]
        path = Path(module)
        rooms = {*path.parts[1:-1], path.parts[0]} - {"servesim"}

        def order(test: str) -> tuple[bool, bool, float, str]:
            file = Path(test.partition("::")[0])
            near = path.stem.strip("_") in file.stem
            return not near, not near and rooms.isdisjoint(file.parts), self.seconds[test], test

        return sorted(found, key=order)


def _digest(whole: str, file: str) -> str:
    return hashlib.sha256(whole.encode() + (ROOT / file).read_bytes()).hexdigest()[:16]


def _imported(module: str, line: int) -> bool:
    """Return whether a line is executed by the import: in the body of no function."""
    tree = ast.parse((ROOT / module).read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return not any(node.body[0].lineno <= line <= (node.end_lineno or line) for node in functions)
