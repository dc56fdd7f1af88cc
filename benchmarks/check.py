"""Whether the quick cases are slower than `results.json` says: `python -m benchmarks.check`, part of CI.

What is compared is the cost of a case in units of a fixed piece of work done beside it (`measure.calibrate`), so that
a slower machine, or a busy one, does not fail: instructions where both sides could count them, else CPU seconds.
A case more than 1.5 times dearer fails. `make bench` writes new figures.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from benchmarks.cases import CASES
from benchmarks.measure import in_own_process
from benchmarks.table import RESULTS, build

MOST = 1.5


def dearer(now: dict[str, Any], before: dict[str, Any]) -> tuple[float, str]:
    """How many times what it was a case costs now, and by what it was measured."""

    def cost(figures: dict[str, Any], kind: str) -> float:
        return float(figures[f"loop_{kind}"] / figures[f"calibration_{kind}"] / figures["requests"])

    kind = "instructions" if all(f.get("loop_instructions") for f in (now, before)) else "cpu_s"
    return cost(now, kind) / cost(before, kind), "instructions" if kind == "instructions" else "CPU time"


def main() -> int:
    """0: as fast as before; 1: slower."""
    stored = json.loads(RESULTS.read_text(encoding="utf-8")).get(build(), {})
    failed = False
    for name, case in CASES.items():
        if case.group != "quick":
            continue
        if name not in stored:
            print(f"benchmark {name}: no figures of this build are stored")
            continue
        figures = in_own_process(name)
        if "loop_cpu_s" not in figures:
            print(f"benchmark {name}: {figures['skipped']}")
            failed = True
            continue
        times, measured_by = dearer(figures, stored[name])
        slow = times > MOST
        failed |= slow
        print(f"benchmark {name}: {times:.2f} times the stored cost by {measured_by}{', TOO SLOW' if slow else ''}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
