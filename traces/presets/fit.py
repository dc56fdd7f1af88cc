"""Fit the twin of a trace: `python -m servesim.traces.presets.fit ORIGINAL --name NAME --out NAME.json`.

The output contains statistics (rate profile, quantile tables, shares), never rows of the original.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from servesim.errors import UserError
from servesim.workload.trace import Trace

from ..formats import detect_format
from ..io import load_trace
from .arrivals import fit_arrivals
from .servegen import fit_servegen
from .tables import JointTable
from .tree import fit_tree

PROMPT_BINS = 20
MIN_REQUESTS = 200


def fit_trace(trace: Trace, block_size: int = 512) -> dict[str, Any]:
    """Return the fitted statistics of a trace as plain JSON values. Content is fitted as a conversation tree."""
    if len(trace) < MIN_REQUESTS or trace.arrival_ns[-1] - trace.arrival_ns[0] < 180 * 10**9:
        raise UserError(
            f"trace {trace.name}: a fit needs at least {MIN_REQUESTS} requests that span at least 3 minutes"
        )
    fitted: dict[str, Any] = {"arrivals": fit_arrivals(trace.arrival_ns).to_json()}
    if trace.content is None:
        lengths = JointTable.fit(trace.prompt_len, PROMPT_BINS, output=trace.output_len)
        return fitted | {"lengths": lengths.to_json()}
    tree = fit_tree(trace.content, trace.prompt_len, trace.output_len, block_size)
    return fitted | {"tree": tree.to_json()}


def main(argv: list[str] | None = None) -> int:
    """Run the command line; on bad input, print one line and return exit code 2."""
    parser = argparse.ArgumentParser(prog="python -m servesim.traces.presets.fit", description=__doc__)
    parser.add_argument("original", type=Path, help="a trace file, or a folder of ServeGen's chunk-N files")
    parser.add_argument("--name", required=True, help="the preset's name")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--source", default="", help="where the original comes from")
    parser.add_argument("--licence", default="", help="the original's licence")
    parser.add_argument("--citation", default="", help="what to cite")
    args = parser.parse_args(argv)
    try:
        options: dict[str, Any] = {}
        if args.original.is_dir():
            statistics, hashed = fit_servegen(args.original), sorted(args.original.glob("chunk-*"))
        else:
            options = {"spread_ticks": "uniform"} if detect_format(args.original) == "mooncake" else {}
            statistics, hashed = fit_trace(load_trace(args.original, **options)), [args.original]
        digest = hashlib.sha256()
        for path in hashed:
            digest.update(path.read_bytes())
        origin = {
            "file": args.original.name,
            "sha256": digest.hexdigest(),
            "source": args.source,
            "licence": args.licence,
            "citation": args.citation,
            "read_with": options,
        }
        fitted = {"name": args.name, "original": origin, **statistics}
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    beside = args.out.with_name(f".{args.out.name}.part")
    beside.write_text(json.dumps(fitted, separators=(",", ":")) + "\n", encoding="utf-8")
    beside.replace(args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
