"""servesim beside the Rust replay of ai-dynamo-runtime on the same rows: `make bench-peers`, compiled where `make
compiled` has been run. Every run is a process of its own, and the sides take turns. Counted are the CPU seconds of the
call: no imports, no reading of the trace (the replay reads inside its call; that is measured apart and taken off)."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.cases import MOONCAKE, SHARED
from benchmarks.table import machine

ROOT = Path(__file__).resolve().parents[1]
TWIN = "preset:mooncake-conversation"
LIMITS = {  # what all sides are given
    "replicas": 8,
    "kv_tokens": 1_778 * 512,  # what Llama-3.1-8B leaves of an H200, in whole blocks of either size
    "max_num_seqs": 256,
    "max_num_batched_tokens": 8192,
}
BLOCKS = (512, 16)
TRAFFIC = ("requests", "input_tokens", "output_tokens")
REPLAY = "ai-dynamo-runtime"
ROW = "{:<20}{:>10}{:>8}{:>7}{:>7}{:>8}{:>13}{:>7}"
HEAD = ROW.format("", "blocks of", "CPU s", "from", "to", "loop s", "same blocks", "512")
NOTES = f"""\
CPU s: the median round; loop s: its event loop alone; last columns: CPU s of the replay, with the same blocks and
  with blocks of 512, over the row's
all: vLLM's rules (chunked prefill, prefix caching), round robin, {LIMITS["kv_tokens"]:,} tokens of KV a replica
{REPLAY}: a step takes a polynomial of its prompt tokens plus one of the share of KV in use, not calibrated;
  KV events off; gives summary figures
servesim: a step is priced kernel by kernel from measured tables, Llama-3.1-8B on H200, plus the host's time;
  gives summary figures and the records of every request, step and delivery"""


class Side(NamedTuple):
    """One side of the comparison: its name, its interpreter below the checkout, what that runs, the make target of
    it."""

    name: str
    python: str
    script: tuple[str, ...]
    target: str


OURS = ("-m", "benchmarks.peers_servesim")
SIDES = (
    Side(REPLAY, ".venv-peers/bin/python", ("benchmarks/peers_dynamo.py",), "bench-peers"),
    Side("servesim", ".venv/bin/python", OURS, "bench-peers"),
    Side("servesim, compiled", ".venv-compiled/bin/python", OURS, "compiled"),
)
Runs = Mapping[tuple[str, int], Sequence[Mapping[str, Any]]]
"""Figures of each round by side and block size."""


def parse(name: str, done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return the figures that a run printed last; RuntimeError with its last words where it failed."""
    if done.returncode:
        raise RuntimeError(f"{name}: {(done.stderr.splitlines() or [f'exit code {done.returncode}'])[-1]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def measure(trace: Path, sides: Sequence[Side], rounds: int) -> Runs:
    """Run the sides in turn, `rounds` times; RuntimeError where a run fails or serves other traffic."""
    runs: dict[tuple[str, int], list[dict[str, Any]]] = {(side.name, block): [] for block in BLOCKS for side in sides}
    for _ in range(rounds):
        for block in BLOCKS:
            for side in sides:
                work = json.dumps({**LIMITS, "trace": str(trace), "block_size": block})
                command = [str(ROOT / side.python), *side.script, work]
                run = parse(side.name, subprocess.run(command, capture_output=True, text=True, cwd=ROOT))
                runs[side.name, block].append(run)
    check_traffic(runs)
    return runs


def check_traffic(runs: Runs) -> None:
    """Raise RuntimeError unless every run served the same requests and tokens."""
    served = [(key[0], *(run[name] for name in TRAFFIC)) for key, each in runs.items() for run in each]
    if len({row[1:] for row in served}) > 1:
        raise RuntimeError(f"not the same traffic (side, {', '.join(TRAFFIC)}): {list(dict.fromkeys(served))}")


def rows_of(runs: Runs) -> list[dict[str, Any]]:
    """Return a row for each side and block size: its median round, the CPU seconds of all rounds, and the replay's
    seconds over these with the same blocks (`times`) and with blocks of 512 (`times_512`)."""
    middle = {key: sorted(each, key=lambda run: run["cpu_s"])[len(each) // 2] for key, each in runs.items()}
    return [
        {
            "side": key[0],
            "block_size": key[1],
            **run,
            "rounds_cpu_s": [each["cpu_s"] for each in runs[key]],
            "times": middle[REPLAY, key[1]]["cpu_s"] / run["cpu_s"],
            "times_512": middle[REPLAY, 512]["cpu_s"] / run["cpu_s"],
        }
        for key, run in middle.items()
    ]


def line(row: Mapping[str, Any]) -> str:
    """Return a row's line of the table."""
    low, high, loop = min(row["rounds_cpu_s"]), max(row["rounds_cpu_s"]), row.get("loop_cpu_s")
    cells = (row["cpu_s"], low, high, loop, row["times"], row["times_512"])
    return ROW.format(row["side"], row["block_size"], *("" if cell is None else f"{cell:.2f}" for cell in cells))


def main(arguments: Sequence[str] | None = None) -> None:
    here = SHARED / MOONCAKE
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", default=str(here) if here.is_file() else TWIN, help=f"its twin: {TWIN}")
    parser.add_argument("--requests", type=int, default=10_000, help="the first of the trace")
    parser.add_argument("--rounds", type=int, default=5, help="odd, at least 3")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    args = parser.parse_args(arguments)
    if args.rounds < 3 or args.rounds % 2 == 0:
        parser.error(f"--rounds is {args.rounds} but must be odd and at least 3")
    if args.json and not args.json.resolve().parent.is_dir():
        parser.error(f"--json {args.json}: there is no such folder")
    missing = [side for side in SIDES if not (ROOT / side.python).exists()]
    for side in missing:
        told = f"{side.python} is not there, make {side.target} makes it"
        if side.target == "bench-peers":
            parser.error(told)
        print(f"{side.name} skipped: {told}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        convert = ["-m", "servesim", "trace", "convert", args.trace, str(path), "--to", "mooncake"]
        done = subprocess.run([sys.executable, *convert, "--requests", str(args.requests)], stdout=subprocess.DEVNULL)
        if done.returncode:  # it has said why
            sys.exit(done.returncode)
        trace = {"name": args.trace.rpartition("/")[2], "sha256": sha256(path.read_bytes()).hexdigest()}
        try:
            rows = rows_of(measure(path, [side for side in SIDES if side not in missing], args.rounds))
        except RuntimeError as error:
            sys.exit(f"error: {error}")
    print(f"first {args.requests:,} rows of {trace['name']}, {LIMITS['replicas']} replicas, {args.rounds} rounds")
    print(HEAD, *map(line, rows), NOTES, sep="\n")
    if args.json:
        told = json.dumps({"machine": machine(), "trace": trace, "limits": LIMITS, "rows": rows}, indent=1)
        args.json.write_text(told + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
