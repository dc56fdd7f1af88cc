"""Mutation testing: one operator, comparison, number or statement changed at a time, and the tests that reach it run.

`python -m tests.support.mutants` (make mutants) draws mutants of MODULES by a fixed seed, runs of each the tests of the
default suite that execute its line, cheapest first, and prints those that no test noticed. `--modules` and `--lines`
choose others, as in a review. Survivors with a reason are listed in mutants.txt, beside this file. What was decided is
kept in the scratch folder: the next run with the same modules goes on behind it, and tries what survived again, on the
tests as they are then.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import islice
from math import sqrt
from pathlib import Path

from tests.support.mutations import ROOT, Mutant, changed, mutant_at, places

MODULES = (
    "servesim/cost/attention.py", "servesim/cost/context_pricing.py", "servesim/cost/curve.py",
    "servesim/cost/curves.py", "servesim/cost/graph.py", "servesim/cost/host.py", "servesim/cost/linear.py",
    "servesim/cost/sources.py", "servesim/cost/stage.py", "servesim/engine/fast/kv/lockstep_tables.py",
    "servesim/metrics/requests.py", "policies/kv/paged.py", "policies/kv/prefix_hash.py",
)  # fmt: skip
TESTS = (
    "tests/unit/cost", "tests/unit/metrics", "tests/unit/kv", "tests/unit/engine",
    "tests/unit/calibrate/test_import_llmservingsim.py",
    "tests/property/test_cost_properties.py", "tests/property/test_block_tables.py", "tests/property/test_extents.py",
)  # fmt: skip
WHOLE = ("tests/unit", "tests/property", "tests/conformance", "tests/golden", "tests/validation")
"""What is tried with --whole on those that TESTS left, for WHOLE_SECONDS."""
OUTSIDE = ("policies", "traces", "calibrate", "reports")
"""Folders that are installed as packages of servesim."""
PYTEST = (
    *("-q", "-x", "-p", "no:benchmark", "-p", "no:cacheprovider", "--tb=no"),
    *("--hypothesis-profile=dev", "--no-header"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # plugins are imported before the fork
)
START = """
import sys
sys.path.insert(0, sys.argv[1])
import servesim  # of the copy, before pytest puts the checkout first
import pytest
sys.exit(pytest.main(sys.argv[2:]))
"""
SECONDS = 20
"""Of the processor, for a mutant."""
WHOLE_SECONDS = 600
OUTPUT = "output.txt"
"""What the tests of the last mutant printed, in the scratch folder."""
FIRST = 8
"""Tests that are run alone at first: most mutants end there."""
SLOWEST = 8.0
"""Seconds of a test from which on it is not used: 20 s would not do."""
KNOWN = Path(__file__).with_name("mutants.txt")


def staged(folder: Path) -> Path:
    """Copy the packages to `folder` under the names they are installed by; data are linked. Return the folder."""
    package = folder / "servesim"
    if not package.exists():
        ignored = shutil.ignore_patterns("__pycache__", "tables")
        shutil.copytree(ROOT / "servesim", package, ignore=ignored, ignore_dangling_symlinks=True)
        for name in OUTSIDE:
            shutil.copytree(ROOT / name, package / name, ignore=ignored)
        (package / "cost" / "tables.py").write_bytes((ROOT / "servesim/cost/tables.py").read_bytes())
        for found in ROOT.glob("*/**/tables"):
            if found.is_dir() and found.parts[len(ROOT.parts)] in (*OUTSIDE, "servesim"):
                place = found.relative_to(ROOT)
                target = package / (place if place.parts[0] != "servesim" else Path(*place.parts[1:]))
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(found)
    return folder


def placed(folder: Path, module: str) -> Path:
    """Return where a module lies in the copy."""
    return folder / module if module.startswith("servesim/") else folder / "servesim" / module


def reached(folder: Path) -> tuple[dict[str, dict[int, list[str]]], dict[str, float]]:
    """Run TESTS once with coverage: by module and line the tests that execute it, and how long each takes. Kept in
    `folder` until one of them changes."""
    kept = folder / "reached.json"
    newest = max(path.stat().st_mtime for place in (*TESTS, *MODULES) for path in _files(ROOT / place))
    if not kept.exists() or kept.stat().st_mtime < newest:
        settings = folder / "coverage.ini"
        sources = ",".join(sorted({str(placed(folder, module).parent) for module in MODULES}))
        settings.write_text(f"[run]\nsource = {sources}\ndata_file = {folder / 'coverage'}\nparallel = false\n")
        command = [
            *(
                sys.executable,
                "-c",
                START,
                str(folder),
                *PYTEST[:1],
                *PYTEST[2:],
                "--durations=0",
                "--durations-min=0.02",
            ),
            *("--cov", f"--cov-config={settings}", "--cov-context=test", "--cov-report=", *TESTS),
        ]
        # Compiled files are written here, where nothing is changed yet: mutants only read them.
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"the tests fail as they are:\n{done.stdout[-3000:]}")
        kept.write_text(json.dumps(_contexts(folder, done.stdout)))
    by_line, seconds = json.loads(kept.read_text())
    return {m: {int(line): tests for line, tests in lines.items()} for m, lines in by_line.items()}, seconds


def _files(place: Path) -> list[Path]:
    return sorted(place.rglob("*.py")) if place.is_dir() else [place]


def _contexts(folder: Path, report: str) -> tuple[dict[str, dict[int, list[str]]], dict[str, float]]:
    import coverage

    data = coverage.CoverageData(str(folder / "coverage"))
    data.read()
    by_line = {}
    for module in MODULES:
        lines = data.contexts_by_lineno(str(placed(folder, module)))
        by_line[module] = {n: sorted({c.rpartition("|")[0] for c in found if c}) for n, found in lines.items()}
    seconds: dict[str, float] = {}
    for line in report.splitlines():
        words = line.split(maxsplit=2)  # names of tests have blanks
        if len(words) == 3 and words[0].endswith("s") and words[1] in ("call", "setup") and "::" in words[2]:
            seconds[words[2]] = seconds.get(words[2], 0.0) + float(words[0][:-1])
    return by_line, seconds


def reaching(lines: dict[int, list[str]], line: int) -> list[str]:
    """Return the tests that execute a line, or the statement that goes on there; of one executed by the import alone
    those that execute any line of the module."""
    begin = next((at for at in range(line, max(line - 12, 0), -1) if at in lines), None)
    if begin is None:
        return []
    return lines[begin] or sorted({test for tests in lines.values() for test in tests})


def chosen(tests: list[str], seconds: dict[str, float]) -> list[str]:
    """Return the tests to run, cheapest first, as many as fit the time of a mutant (half of it goes to starting)."""
    found, left = [], SECONDS / 2
    for test in sorted(tests, key=lambda test: (seconds.get(test, 0.0), test)):
        took = seconds.get(test, 0.0)
        if took > min(SLOWEST, left):
            break
        found.append(test)
        left -= took
    return found[:400]


def killed(folder: Path, mutant: Mutant, tests: list[str], killers: Counter[str]) -> bool:
    """Run tests on a mutant, those that noticed others of its module first; return whether one fails, or they take too
    long. `killers` counts what the tests noticed."""
    source = (ROOT / mutant.module).read_text(encoding="utf-8")
    text = changed(source, mutant.number)[0]
    first = [test for test, _ in killers.most_common() if test in tests][:FIRST]
    rest = [test for test in tests if test not in first]
    for part in (first, rest):
        if part and fails(folder, mutant.module, text, part):
            said = (folder / OUTPUT).read_text(encoding="utf-8", errors="replace")
            named = [line.split(" - ")[0].split(" ", 1)[1] for line in said.splitlines() if line.startswith("FAILED ")]
            killers.update(test for test in named if test in part)
            return True
    return False


def _fails_whole(folder: Path, mutant: Mutant) -> bool:
    text = changed((ROOT / mutant.module).read_text(encoding="utf-8"), mutant.number)[0]
    return fails(folder, mutant.module, text, [place for place in WHOLE if (ROOT / place).exists()], WHOLE_SECONDS)


def assert_passing(folder: Path, module: str, tests: list[str]) -> None:
    """Run tests on a module as it is, but for its layout: had it failed, all of its mutants would seem killed."""
    tree = ast.parse((ROOT / module).read_text(encoding="utf-8"))
    if fails(folder, module, ast.unparse(tree), tests):
        raise SystemExit(f"{module}: its tests fail, or take over {SECONDS} s, without a change: {' '.join(tests[:5])}")


def fails(folder: Path, module: str, text: str, tests: list[str], seconds: int = SECONDS) -> bool:
    """Run tests on a module that reads `text`, in a process forked from this one, which has imported what they need
    besides servesim; True where they take over `seconds` of the processor."""
    path = placed(folder, module)
    source = (ROOT / module).read_text(encoding="utf-8")
    path.write_text(text, encoding="utf-8")
    try:
        child = os.fork()
        if not child:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))  # the machine may be doing something else
            _test(folder, tests)
        end = time.monotonic() + 10 * seconds
        while time.monotonic() < end:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status) != 0
            time.sleep(0.02)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return True  # waits without end
    finally:
        path.write_text(source, encoding="utf-8")


def _test(folder: Path, tests: list[str]) -> None:
    """Run tests and end this process: 0 where all pass."""
    output = os.open(folder / OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(ROOT)
    sys.dont_write_bytecode = True
    sys.argv = ["-c", str(folder), *PYTEST, *tests]
    try:
        exec(START, {})
        code = 98
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        code = 99
    os._exit(code)


def main() -> None:
    """Draw mutants, run their tests, print who survives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=330)
    parser.add_argument("--seed", type=int, default=21)
    parser.add_argument("--folder", type=Path, default=Path(".mutants"), help="scratch: the copy, and what tests reach")
    parser.add_argument("--modules", nargs="*", default=MODULES)
    parser.add_argument("--lines", help="FROM-TO: only changes of these lines")
    parser.add_argument("--whole", action="store_true", help="try those that are left on the rest of the suite, too")
    options = parser.parse_args()
    folder = staged(options.folder.resolve())
    lines, seconds = reached(folder)
    _import_others()
    known = dict(_known())
    found = [place for module in options.modules for place in places(module)]
    if options.lines:
        first, _, last = options.lines.partition("-")
        found = [place for place in found if int(first) <= place[1] <= int(last or first)]
    random.Random(options.seed).shuffle(found)
    each = filter(None, (mutant_at(module, number) for module, _, number in found))
    counts: Counter[str] = Counter()
    decided = folder / "killed.txt"
    before = set(decided.read_text(encoding="utf-8").splitlines()) if decided.exists() else set()
    passing: set[str] = set()
    killers: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for mutant in islice(each, options.count):
        if mutant.module not in passing:
            every = sorted({test for tests in lines[mutant.module].values() for test in tests})
            assert_passing(folder, mutant.module, chosen(every, seconds))
            passing.add(mutant.module)
        tests = chosen(reaching(lines.get(mutant.module, {}), mutant.line), seconds)
        if mutant.digest in before or (tests and killed(folder, mutant, tests, killers[mutant.module])):
            counts["killed"] += 1
            if mutant.digest not in before:
                with decided.open("a", encoding="utf-8") as file:
                    file.write(f"{mutant.digest}\n")
            continue
        if options.whole and mutant.key not in known and _fails_whole(folder, mutant):
            counts["killed by others"] += 1
            print(f"{counts.total()} killed by others: {mutant.module}:{mutant.line}: {mutant.told}", flush=True)
            continue
        verdict = "known" if mutant.key in known else "survived" if tests else "not reached"
        counts[verdict] += 1
        print(f"{counts.total()} {verdict}: {mutant.module}:{mutant.line}: {mutant.told}", flush=True)
    told = ", ".join(f"{n} {verdict}" for verdict, n in sorted(counts.items()))
    share, low, high = binomial(counts["killed"] + counts["killed by others"], counts.total())
    print(
        f"{counts.total()} mutants of {len(options.modules)} modules: {told}; "
        f"{share:.1%} killed ({low:.1%} to {high:.1%})",
        flush=True,
    )
    sys.exit(bool(counts["survived"] or counts["not reached"]))


def binomial(found: int, of: int) -> tuple[float, float, float]:
    """Return a share and its 95 % interval (Wilson's): as much as mutants that are drawn say of all."""
    if not of:
        return 0.0, 0.0, 1.0
    z, share = 1.96, found / of
    middle, spread = share + z * z / (2 * of), z * sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    return share, (middle - spread) / (1 + z * z / of), (middle + spread) / (1 + z * z / of)


def _known() -> Iterator[tuple[str, str]]:
    """Yield the survivors that are listed, and the reason of each: lines `mutant  # reason`."""
    for line in KNOWN.read_text(encoding="utf-8").splitlines() if KNOWN.exists() else ():
        mutant, _, reason = line.partition("  # ")
        if reason:
            yield mutant, reason


def _import_others() -> None:
    """Import what is not mutated and takes long."""
    import hypothesis
    import numpy
    import pyarrow.parquet
    import pydantic
    import pytest
    import typer
    import yaml

    assert all((hypothesis, numpy, pyarrow.parquet, pydantic, pytest, typer, yaml))


if __name__ == "__main__":
    main()
