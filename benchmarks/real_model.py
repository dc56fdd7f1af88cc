"""Simulated beside measured TPOT of a small GPT on this processor: `python -m benchmarks.real_model [--rounds 5]`.

A round profiles the model into a folder of its own and then times its answers, so that what else the machine does meets
both alike. Needs the extra calibrate. The goal is a median within 10 %; the figures are this machine's, and nothing
asserts them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import median

from servesim.calibrate.generation import Bench, with_cache
from servesim.calibrate.kernels import open_kernels
from servesim.calibrate.points import Shard
from servesim.calibrate.profile import Options, profile
from servesim.calibrate.timing import open_device
from servesim.hardware import ModelSpec

MODEL, PROMPT, OUTPUT = "llama-68m", 64, 25
BATCHES = (1, 4, 8)
GOAL = 0.10


def one_round(folder: Path, budget_s: float) -> dict[int, tuple[float, float]]:
    """Return the measured and the simulated TPOT in milliseconds by number of sequences, with tables of their own."""
    device = open_device("cpu")
    shard = Shard(ModelSpec.load(MODEL), 1, "fp32")
    profile(device, open_kernels(device, None, "fp32", []), [shard], Options(folder, budget_s, 1000.0, 64, 128, 8))
    bench, found = Bench(MODEL, folder), {}
    for count in BATCHES:
        decodes = with_cache(PROMPT, OUTPUT, count)[1:]
        found[count] = (
            1e3 * bench.measured_s(decodes) / len(decodes),
            1e3 * bench.priced_s(decodes) / len(decodes),
        )
    return found


def main() -> None:
    """Print each round and the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--budget-s", type=float, default=60.0, help="of each profile")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rounds: list[dict[int, tuple[float, float]]] = []
    for i in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            rounds.append(one_round(Path(folder) / "tables", options.budget_s))
        text = ", ".join(f"{n}: {m:.2f} / {s:.2f} ms" for n, (m, s) in rounds[-1].items())
        print(f"round {i + 1}, measured / simulated TPOT by sequences: {text}", flush=True)
    errors = {n: median(s / m - 1 for m, s in (r[n] for r in rounds)) for n in BATCHES}
    for count, error in errors.items():
        held = "within" if abs(error) <= GOAL else "not within"
        print(f"{count} sequences: median {error:+.1%}, {held} {GOAL:.0%}")
    if options.json:
        figures = {"rounds": rounds, "median_error": errors}
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
