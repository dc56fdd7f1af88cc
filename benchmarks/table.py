"""The table of speeds: `python -m benchmarks.table [CASE or GROUP ...]`.

Run it with `.venv-compiled/bin/python` (`make compiled`) for the compiled build. Without names, all cases but the quick
ones, the streams, the routers and those of `--out`; groups are table, policies, requests, batch, tree, stream,
features, routers, drafts, queues, quick and out. `--json FILE` keeps the figures of these cases beside those of others.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.cases import CASES, Case
from benchmarks.measure import in_own_process
from servesim.engine import compiled

RESULTS = Path(__file__).with_name("results.json")
GROUPS = tuple(dict.fromkeys(case.group for case in CASES.values()))
SERIES = {"requests": ("requests", 1.2), "batch": ("steps", 2.0), "tree": ("requests", 1.5)}
"""Series: what its cost is per, and how much that may vary between its cases."""
HEAD = (
    "case",
    "requests",
    "steps",
    "batch",
    "loop s",
    "requests/s",
    "steps/s",
    "instr./unit",
    "at least",
    "start s",
    "MB",
)
ROW = "{:<15}{:>11}{:>12}{:>8}{:>9}{:>12}{:>13}{:>12}{:>11}{:>9}{:>8}"


def rate(figures: dict[str, Any], unit: str) -> float | None:
    """Return units per CPU second of the loop."""
    return figures[unit] / figures["loop_cpu_s"] if figures.get("loop_cpu_s") else None


def row(name: str, case: Case, figures: dict[str, Any]) -> str:
    """Return one line of the table."""
    if "peak_memory_mb" not in figures:
        return f"{name:<15} skipped: {figures['skipped']}"
    memory = f"{figures['peak_memory_mb']:,.0f}"
    if case.process:
        limit = f"<= {case.target:g} s" if case.target else ""
        blank = ("",) * 6
        return ROW.format(name, figures["requests"], *blank, limit, f"{figures['process_cpu_s']:.2f}", memory)
    count = figures["loop_instructions"]
    return ROW.format(
        name,
        f"{figures['requests']:,}",
        f"{figures['steps']:,}",
        f"{figures['mean_batch']:,.1f}",
        f"{figures['loop_cpu_s']:.2f}",
        f"{rate(figures, 'requests'):,.0f}",
        f"{rate(figures, 'steps'):,.0f}",
        f"{count / figures[case.unit]:,.0f}" if count else "-",
        f"{case.target:,.0f}" if case.target else "",
        f"{figures['startup_cpu_s']:.2f}",
        memory,
    )


def series(results: dict[str, dict[str, Any]]) -> list[str]:
    """Return how much the cost per unit varies within each series, by time and by instructions."""
    lines = []
    for group, (unit, limit) in SERIES.items():
        members = [f for n, f in results.items() if CASES[n].group == group and "loop_cpu_s" in f]
        if len(members) < 2:
            continue
        said = []
        for label, key in (("CPU s", "loop_cpu_s"), ("instructions", "loop_instructions")):
            if all(f[key] for f in members):
                costs = [f[key] / f[unit] for f in members]
                said.append(f"{label} {max(costs) / min(costs):.2f}x")
        lines.append(
            f"{group}: dearest over cheapest per {unit.removesuffix('s')}: {', '.join(said)}; at most {limit}x"
        )
    return lines


def machine() -> dict[str, Any]:
    """Describe the machine the figures were taken on."""
    cpu = platform.processor() or platform.machine()
    if (info := Path("/proc/cpuinfo")).exists():
        names = [
            line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        cpu = names[0] if names else cpu
    versions = {name: version(name) for name in ("servesim", "numpy", "simpy", "pyarrow")}
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        **versions,
    }


def build() -> str:
    """Return where figures of the servesim that runs are kept: the pure ones under "cases", or "compiled" ones."""
    return "compiled" if compiled() else "cases"


def store(path: Path, results: dict[str, dict[str, Any]]) -> None:
    """Put the figures into the file, beside those of other cases and of the other build."""
    stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    figures = {name: _rounded(f) for name, f in results.items() if "peak_memory_mb" in f}
    cases = {name: {**stored.get(build(), {}), **figures}.get(name) for name in CASES}
    whole = {"machine": machine(), "cases": stored.get("cases", {}), "compiled": stored.get("compiled", {})}
    whole[build()] = {name: f for name, f in cases.items() if f}
    path.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


def _rounded(figures: dict[str, Any]) -> dict[str, Any]:
    return {key: float(f"{v:.4g}") if isinstance(v, float) else v for key, v in figures.items() if v is not None}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="CASE", help=f"{', '.join(GROUPS)}, or {', '.join(CASES)}")
    parser.add_argument("--requests", type=int, help="instead of each case's own number")
    parser.add_argument("--repeats", type=int, help="take the quickest of N runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    args = parser.parse_args(arguments)
    for name in args.names:
        if name not in CASES and name not in GROUPS:
            parser.error(f"no case or group {name!r}; there are {', '.join((*GROUPS, *CASES))}")
    wanted = args.names or [group for group in GROUPS if group not in ("quick", "stream", "routers", "out")]
    if args.json and args.requests:
        parser.error("--json keeps figures of whole cases: leave out --requests")
    print(f"{'compiled' if compiled() else 'pure'} build")
    print(ROW.format(*HEAD))
    results: dict[str, dict[str, Any]] = {}
    for name, case in CASES.items():
        if name in wanted or case.group in wanted:
            results[name] = in_own_process(name, None if case.process else args.requests, args.repeats)
            print(row(name, case, results[name]), flush=True)
    print("loop, start: CPU seconds; garbage collection as servesim leaves it", end="")
    states = sorted({f["gc"] for f in results.values() if "gc" in f})
    print(f" ({'; '.join(states)})" if states else "")
    print(*series(results), sep="\n")
    if args.json:
        store(args.json, results)


if __name__ == "__main__":
    main()
