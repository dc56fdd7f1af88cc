"""Mutation testing: one operator, comparison, number or statement changed at a time, and the tests that reach it run.

`python -m tests.support.mutants` (make mutants) draws mutants of the whole product by a seed, runs of each the tests of
the default suite that execute its line, nearest first, and prints those that no test noticed. `--modules` and `--lines`
choose some, as in a review. Survivors that change no behavior are listed in mutants.txt, beside this file. What was
decided is kept in the scratch folder: the next run with the same modules goes on behind it, and tries what survived
again, on the tests as they are then.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import islice
from math import sqrt
from pathlib import Path

from tests.support.mutations import ROOT, Mutant, changed, mutant_at, places
from tests.support.reached import PYTEST, START, Reached, placed, product, staged

SECONDS = 40
"""Of the processor, for a mutant."""
NEAR = 24
"""Tests that are run first, after those that noticed others of the module: most mutants end there."""
OUTPUT = "output.txt"
"""What the tests of the last mutant printed, in the scratch folder."""
KNOWN = Path(__file__).with_name("mutants.txt")


class Trial:
    """What tests say of mutants."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._reached = Reached(folder)
        self._killers: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._passing: dict[str, bool] = {}
        """Of tests that noticed a mutant: whether they pass alone without a change."""

    def verdict(self, mutant: Mutant) -> str:
        """Return `killed` and by which test, or why a mutant is not: no test reaches it, all pass, those that fit
        SECONDS pass (`left by`), they take longer than it (`slowed`), or pytest does not find one by its name."""
        found = [t for t in self._reached.tests(mutant.module, mutant.line) if self._passing.get(t, True)]
        if not found:
            return "not reached"
        tests = self._fitting(found)
        text = changed((ROOT / mutant.module).read_text(encoding="utf-8"), mutant.number)[0]
        killers = self._killers[mutant.module]
        first = [test for test, _ in killers.most_common(8) if test in tests]
        near = [test for test in tests if test not in first][:NEAR]
        rest = [test for test in tests if test not in {*first, *near}]
        for part in filter(None, (first, near, rest)):
            code = run(self._folder, mutant.module, text, part)
            if code < 0:
                return "slowed"
            if code:
                killer = self._killer(part)
                if killer is None:
                    return "killed by an import" if not self._unchanged([*part, "--collect-only"]) else "not collected"
                if not self._passes(killer):
                    return self.verdict(mutant)  # without that test
                killers[killer] += 1
                return f"killed by {killer}"
        return "survived" if len(tests) == len(found) else f"left by {len(tests)} of {len(found)} tests"

    def _fitting(self, found: list[str]) -> list[str]:
        """Return as many tests as the time of a mutant holds: without coverage they take less."""
        tests, left = [], float(SECONDS)
        for test in found:
            left -= self._reached.seconds[test]
            if left >= 0:
                tests.append(test)
            else:
                left += self._reached.seconds[test]
        return tests

    def _killer(self, tests: list[str]) -> str | None:
        said = (self._folder / OUTPUT).read_text(encoding="utf-8", errors="replace").splitlines()
        named = [line.split(" - ")[0].split(" ", 1)[1] for line in said if line.startswith(("FAILED ", "ERROR "))]
        return next((test for test in named if test in tests), None)

    def _passes(self, test: str) -> bool:
        if test not in self._passing:
            self._passing[test] = not self._unchanged([test])
            if not self._passing[test]:
                print(f"fails alone, and is left out: {test}", flush=True)
        return self._passing[test]

    def _unchanged(self, tests: list[str]) -> int:
        """Return the exit code of tests on the product as it is."""
        module = product()[0]
        return run(self._folder, module, (ROOT / module).read_text(encoding="utf-8"), tests)


def run(folder: Path, module: str, text: str, tests: list[str], seconds: int = SECONDS) -> int:
    """Run tests on a module that reads `text`, in a process forked from this one, which has imported what they need
    besides servesim; return its exit code, negative where they take over `seconds` of the processor."""
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
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return -signal.SIGKILL  # waits without end
    finally:
        path.write_text(source, encoding="utf-8")


def _test(folder: Path, tests: list[str]) -> None:
    """Run tests and end this process: 0 where all pass."""
    output = os.open(folder / OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(ROOT)
    sys.dont_write_bytecode = True
    sys.argv = ["-c", str(folder), *PYTEST, "-x", *tests]
    try:
        exec(START, {})
        code = 98
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        code = 99
    os._exit(code)


def main() -> None:
    """Draw mutants, run their tests, print those that are not killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--seed", type=int, default=21)
    parser.add_argument("--folder", type=Path, default=Path(".mutants"), help="scratch: the copy, and what tests reach")
    parser.add_argument("--modules", nargs="*", default=product())
    parser.add_argument("--lines", help="FROM-TO: only changes of these lines")
    options = parser.parse_args()
    folder = staged(options.folder.resolve())
    trial = Trial(folder)
    _import_others()
    known = dict(_known())
    counts: Counter[str] = Counter()
    decided = folder / "killed.txt"
    before = set(decided.read_text(encoding="utf-8").splitlines()) if decided.exists() else set()
    for mutant in islice(drawn(options.modules, options.seed, options.lines), options.count):
        if mutant.digest in before:
            counts["killed"] += 1
            continue
        verdict = "known" if mutant.key in known else trial.verdict(mutant)
        if verdict.startswith("killed"):
            with decided.open("a", encoding="utf-8") as file:
                file.write(f"{mutant.digest}\n")
        counts[verdict.split()[0]] += 1
        print(f"{counts.total()} {verdict}: {mutant.module}:{mutant.line}: {mutant.told}", flush=True)
    told = ", ".join(f"{n} {verdict}" for verdict, n in sorted(counts.items()))
    share, low, high = binomial(counts["killed"], counts.total())
    others = binomial(counts["killed"], counts.total() - counts["known"])[0]
    print(
        f"{counts.total()} mutants of {len(options.modules)} modules: {told}; {share:.1%} killed ({low:.1%} to "
        f"{high:.1%}), {others:.1%} of those not known to change nothing",
        flush=True,
    )
    sys.exit(counts["killed"] + counts["known"] < counts.total())


def drawn(modules: list[str], seed: int, lines: str | None = None) -> Iterator[Mutant]:
    """Yield mutants of modules in an order drawn by a seed."""
    found = [place for module in modules for place in places(module)]
    if lines:
        first, _, last = lines.partition("-")
        found = [place for place in found if int(first) <= place[1] <= int(last or first)]
    random.Random(seed).shuffle(found)
    return filter(None, (mutant_at(module, number) for module, _, number in found))


def binomial(found: int, of: int) -> tuple[float, float, float]:
    """Return a share and its 95 % interval (Wilson's): as much as mutants that are drawn say of all."""
    if not of:
        return 0.0, 0.0, 1.0
    z, share = 1.96, found / of
    middle, spread = share + z * z / (2 * of), z * sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    return share, (middle - spread) / (1 + z * z / of), (middle + spread) / (1 + z * z / of)


def _known() -> Iterator[tuple[str, str]]:
    """Yield the mutants that change nothing, and the reason of each: lines `mutant  # reason`."""
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
