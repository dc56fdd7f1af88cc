"""Calls of functions in the quick cases: `python -m benchmarks.calls`, part of CI.

Counted are the calls of a whole `servesim.simulate`, of Python functions and of builtins, that `sys.setprofile` would
tell of. They are the same to the digit on any machine under any load, within one minor version of Python and the locked
packages. A case with over 3 % more of them than `calls.json` says fails.

`--store` writes the figures; to raise one it asks for `--why TEXT`. `--against PYTHON` compares with the servesim of
another environment (`make build COMMIT=HEAD~1` makes one) instead. A compiled build hides its calls; instructions, of
either build, are counted by benchmarks.valgrind.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.cases import CASES
from benchmarks.measure import settings_of
from benchmarks.stored import Kind, judge, store, stored

OWN = "import servesim, sys; sys.path.insert(0, sys.argv.pop(1)); from benchmarks.calls import tell; tell()"
"""Code that another interpreter runs: its own servesim with the benchmarks of this checkout, whose path comes first."""
QUICK = [name for name, case in CASES.items() if case.group == "quick"]
KIND = Kind("calls", f"Python {'.'.join(platform.python_version_tuple()[:2])}", "benchmarks.calls")


def count(settings: dict[str, Any]) -> int:
    """Return the calls of a run, made a second time: the first one imports, and fills what is kept between runs."""
    import servesim

    servesim.simulate(settings)
    gc.collect()
    gc.disable()  # its callbacks would come when they come
    profile = cProfile.Profile()  # the events of sys.setprofile, counted in C
    profile.enable()
    servesim.simulate(settings)
    profile.disable()
    gc.enable()
    return total(profile)


def total(profile: cProfile.Profile) -> int:
    """Return how many calls were profiled."""
    return sum(entry.callcount for entry in profile.getstats())


def tell() -> None:
    """Print the calls of the case, and of how many of its requests, that this process was given."""
    name, *requests = sys.argv[1:]
    print(count(settings_of(CASES[name], int(requests[0]) if requests else None)))


def in_own_process(name: str, requests: int | None = None, python: str = sys.executable) -> int:
    """Return the calls of a case, counted by a fresh interpreter of the servesim installed for it. ValueError with its
    last words where it counts none."""
    command = [python, "-P", "-c", OWN, str(Path(__file__).parents[1]), name]
    command += [] if requests is None else [str(requests)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": "0"})
    except OSError as error:
        raise ValueError(f"{python}: {error.strerror}") from None
    if done.returncode:
        raise ValueError((done.stderr.strip().splitlines() or [f"{python}: exit code {done.returncode}"])[-1])
    return int(done.stdout.splitlines()[-1])


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0, 1 where a case makes too many calls, or 2 where nothing can be counted or stored."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="PYTHON", help="interpreter of the environment to compare with")
    parser.add_argument("--store", action="store_true", help="write the figures of this version of Python")
    parser.add_argument("--why", default="", metavar="TEXT", help="what the calls that a figure is raised by are for")
    args = parser.parse_args(arguments)
    if args.store and args.against:
        parser.error("--store writes what this checkout costs, --against compares: one of them")
    if args.why and not args.store:
        parser.error("--why is said with --store")
    from servesim.engine import compiled

    if compiled():
        print("calls: a compiled build hides its calls; python -m benchmarks.valgrind counts its instructions")
        return 2
    counts: dict[str, int] = {}
    failed = False
    before = stored(KIND)
    try:
        for name in QUICK:
            counts[name] = in_own_process(name)
            other = in_own_process(name, python=args.against) if args.against else before.get(name)
            said, fails = judge(KIND, counts[name], other)
            failed |= fails
            print(f"{name}: {said}", flush=True)
        if args.store:
            store(KIND, counts, args.why)
    except ValueError as error:
        print(f"calls: {error}", file=sys.stderr)
        return 2
    return int(failed and not args.store)


if __name__ == "__main__":
    sys.exit(main())
