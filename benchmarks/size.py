"""Size of what a reader and a user meet: `python -m benchmarks.size`, part of CI.

Counted are the raw lines of Python of each room outside the tests, settings (`servesim settings`) and commands. One
that is above its figure in `size.json` (lines: by more than 1 %) fails. `--store` writes the figures; to raise one it
asks for `--why TEXT`, in a commit of its own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import typer

from benchmarks.stored import Kind, judge, store, stored

ROOT = Path(__file__).resolve().parents[1]
STORED = Path(__file__).with_name("size.json")
PRODUCT = ("servesim", "policies", "traces", "calibrate", "reports")
LINES = Kind("lines", "room", "benchmarks.size", most=1)
SURFACE = Kind("surface", "command line", "benchmarks.size", most=0)


def lines_by_room(files: Mapping[str, str]) -> dict[str, int]:
    """Return raw lines by room: a folder of servesim/, or another top-level folder; `product` and `lab` are sums.
    `files`: text by path from the root."""
    found = {"product": 0}
    for name, text in sorted(files.items()):
        top, *inner = name.split("/")
        if top not in (*PRODUCT, "lab"):
            continue
        count = text.count("\n")
        room = f"{top}/{inner[0]}" if top == "servesim" and len(inner) > 1 else top
        found[room] = found.get(room, 0) + count
        if top != "lab":
            found["product"] += count
    return found


def tracked() -> dict[str, str]:
    """Return the text of each Python file that git knows."""
    listed = subprocess.run(["git", "ls-files", "-z", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    paths = [name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]
    return {name: (ROOT / name).read_text(encoding="utf-8") for name in paths}


def surface() -> dict[str, int]:
    """Return how many settings and commands there are."""
    from servesim.cli.app import app
    from servesim.cli.known import all_settings

    return {"settings": len(list(all_settings())), "commands": commands(app)}


def commands(app: typer.Typer) -> int:
    """Return how many commands an application has, those of groups counted one by one."""
    inner = (group.typer_instance for group in app.registered_groups)
    return len(app.registered_commands) + sum(commands(each) for each in inner if each is not None)


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0, 1 where something is too large, or 2 where nothing can be stored."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", action="store_true", help="write the figures")
    parser.add_argument("--why", default="", metavar="TEXT", help="what a figure is raised for")
    args = parser.parse_args(arguments)
    failed = False
    for kind, counts in ((LINES, lines_by_room(tracked())), (SURFACE, surface())):
        before = stored(kind, STORED)
        for name, count in counts.items():
            said, fails = judge(kind, count, before.get(name))
            failed |= fails
            print(f"{name}: {said}")
        if args.store:
            try:
                store(kind, counts, args.why, STORED)
            except ValueError as error:
                print(f"size: {error}", file=sys.stderr)
                return 2
    return int(failed and not args.store)


if __name__ == "__main__":
    sys.exit(main())
