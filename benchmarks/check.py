"""Check that the quick cases cost no more than before: `python -m benchmarks.check`, part of CI.

Instructions decide, in units of a fixed piece of work done beside each case (`measure.calibrate`): a case that takes
more than MOST times those of `results.json` fails. Where they cannot be counted, or another Python stored them, the
costs are printed and decide nothing: CPU time, even in those units, depends on the machine.

`--against PYTHON` compares with the servesim of another environment (`make build COMMIT=HEAD~1` makes one) instead of
`results.json`, both measured here in turn. `make bench` writes new figures.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.cases import CASES
from benchmarks.measure import in_own_process
from benchmarks.table import RESULTS, build

MOST = 1.5
ROUNDS = 3
"""Processes of each side that `--against` starts in turn, one run each; the cheapest counts."""
Figures = dict[str, Any]
Pair = tuple[Figures, Figures | None, str]
"""Figures of a case now, those before, and why they can decide nothing ("": they can)."""


def dearer(now: Figures, before: Figures, kind: str) -> float:
    """Return the cost of a request now over its cost before; `kind` is instructions or cpu_s."""

    def cost(figures: Figures) -> float:
        return float(figures[f"loop_{kind}"] / figures[f"calibration_{kind}"] / figures["requests"])

    return cost(now) / cost(before)


def judge(now: Figures, before: Figures | None, undecided: str = "") -> tuple[str, bool]:
    """Return a line about one case, and whether the case fails."""
    if "loop_cpu_s" not in now:
        return str(now["skipped"]), True
    if before is None:
        return "no figures of this build are stored", False
    if "loop_cpu_s" not in before:
        return f"the other build gives no figures: {before['skipped']}", True
    uncounted = next((f for f in (now, before) if not f.get("loop_instructions")), None)
    if uncounted is not None:
        reason = uncounted.get("skipped") or "instructions were not counted"
        return f"{dearer(now, before, 'cpu_s'):.2f} times the cost by CPU time; decides nothing: {reason}", False
    times = dearer(now, before, "instructions")
    said = f"{times:.2f} times the cost by instructions"
    if undecided:
        return f"{said}; decides nothing: {undecided}", False
    return said + (", TOO SLOW" if times > MOST else ""), times > MOST


def with_stored(name: str) -> Pair:
    """Measure a case and put the stored figures of this build beside it."""
    whole = json.loads(RESULTS.read_text(encoding="utf-8"))
    stored, running = (
        version.rpartition(".")[0] for version in (whole["machine"]["python"], platform.python_version())
    )
    other = f"the stored figures are of Python {stored}, this is {running}" if stored != running else ""
    return in_own_process(name), whole.get(build(), {}).get(name), other


def with_other(python: str) -> Callable[[str], Pair]:
    """Return a function that measures a case here and under the other interpreter, in turn."""

    def measured(name: str) -> Pair:
        pairs = [
            (in_own_process(name, repeats=1), in_own_process(name, repeats=1, python=python)) for _ in range(ROUNDS)
        ]
        now, before = (cheapest(side) for side in zip(*pairs, strict=True))
        return now, before, ""

    return measured


def cheapest(runs: Sequence[Figures]) -> Figures:
    """Return the figures with the least of each cost; those of a run that failed, if one did."""
    failed = [run for run in runs if "loop_cpu_s" not in run]
    if failed:
        return failed[0]
    costs = [f"{part}_{kind}" for part in ("loop", "calibration") for kind in ("cpu_s", "instructions")]
    return runs[0] | {key: min(run[key] for run in runs) for key in costs if all(run.get(key) for run in runs)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0, or 1 where a case fails or does not run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="PYTHON", help="interpreter of the environment to compare with")
    args = parser.parse_args(arguments)
    compare = with_other(args.against) if args.against else with_stored
    failed = False
    for name in (name for name, case in CASES.items() if case.group == "quick"):
        said, fails = judge(*compare(name))
        failed |= fails
        print(f"benchmark {name}: {said}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
