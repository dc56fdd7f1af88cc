"""Instructions of a quick case, of either build: `python -m benchmarks.valgrind`, part of `.ci/run all`.

They are counted for a whole process (by cachegrind without a cache, in a third of callgrind's time), most of which is
its start; so two processes are counted, the second with MORE requests beyond the first's FEW, and the difference
decides: over 3 % more than `calls.json` says fails. Figures are of one interpreter, C compiler and build. `--store`
writes them, and to raise one it asks for `--why TEXT`. Where valgrind is not installed nothing is decided.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.stored import Kind, judge, store, stored

CASE, FEW, MORE = "quick-conv", 100, 1_000
CODE = """
import gc, sys
import servesim
sys.path.insert(0, sys.argv[1])
from benchmarks.cases import CASES
from benchmarks.measure import settings_of
gc.disable()
servesim.simulate(settings_of(CASES[sys.argv[2]], int(sys.argv[3])))
"""
ALIKE = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""All of a process's environment but PATH and HOME: what it says, and its length, are instructions, too."""


def command(requests: int) -> list[str]:
    """Return the command that counts the instructions of a process with `requests` requests."""
    tool = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    return [*tool, sys.executable, "-P", "-c", CODE, str(Path(__file__).parents[1]), CASE, str(requests)]


def instructions(requests: int) -> int:
    """Return the number of instructions of a process with `requests` requests; raise ValueError if it fails."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = subprocess.run(command(requests), capture_output=True, text=True, env=kept | ALIKE)
    found = re.search(r"I +refs: +([\d,]+)", done.stderr)
    if done.returncode or found is None:
        raise ValueError((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    return int(found[1].replace(",", ""))


def kind(compiled: bool) -> Kind:
    """Return what is counted by this interpreter."""
    build = "compiled" if compiled else "pure"
    by = f"{build}, Python {platform.python_version()}, {platform.python_compiler()}, {platform.machine()}"
    return Kind("instructions", by, "benchmarks.valgrind")


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0, 1 where the case takes too many instructions, or 2 where nothing can be counted or stored."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", action="store_true", help="write the figure of this interpreter and build")
    parser.add_argument("--why", default="", metavar="TEXT", help="what the instructions that it is raised by are for")
    args = parser.parse_args(arguments)
    if args.why and not args.store:
        parser.error("--why is said with --store")
    if shutil.which("valgrind") is None:
        print("valgrind: not installed: no instructions are counted")
        return 0
    from servesim.engine import compiled

    mine = kind(compiled())
    try:
        count = instructions(FEW + MORE) - instructions(FEW)
        said, fails = judge(mine, count, stored(mine).get(CASE))
        print(f"{CASE}, {MORE:,} requests more: {said}", flush=True)
        if args.store:
            store(mine, {CASE: count}, args.why)
    except ValueError as error:
        print(f"valgrind: {error}", file=sys.stderr)
        return 2
    return int(fails and not args.store)


if __name__ == "__main__":
    sys.exit(main())
