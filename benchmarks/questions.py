"""Questions to a log of 4,000 rows: their runs, CPU seconds, and a hash of the answer.

    python -m benchmarks.questions [capacity] [rates] [compare] [sweep] [recommend]

`capacity`: how many replicas of twelve deployments carry three times the log's rate. `rates`: the highest rate of two
of them. `compare` and `sweep` run all of four deployments. `recommend`: the cheapest deployment for the log, with the
flags fixed. All in this process, so its CPU time is that of all runs; it is noisy on a shared machine, so compare runs
made in turn. The hash leaves out what differs with any change to the code (addresses), and the single runs that a
search has tried: two commits that answer alike have the same hash.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import servesim
from benchmarks.cases import AZURE, SHARED
from servesim.experiments.runner import Progress

ROWS = 4_000
SLO = {"ttft": 500, "tpot": 40}
MODEL: dict[str, Any] = {"model": "qwen3-14b", "slo": SLO}
TWELVE: dict[str, Any] = {**MODEL, "gpu": ["h100", "h200", "l40s"], "tp": [1, 2], "dtype": ["bf16", "fp8"]}
TWO: dict[str, Any] = {**MODEL, "gpu": ["h100", "h200"], "dtype": "fp8"}
FIXED: dict[str, Any] = {"preset": "vllm", "pd": None, "dp": 1, "kv_dtype": "bf16", "offload": None}
FLAGS = {"name": "vllm", "max_num_seqs": 256, "max_num_batched_tokens": 8192, "long_prefill_token_threshold": 0}
QUESTIONS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "capacity": (servesim.capacity, {**TWELVE, "rate": "3x"}),
    "rates": (servesim.capacity, TWO),
    "compare": (servesim.compare, {**TWO, "rate": "3x", "tp": [1, 2]}),
    "sweep": (servesim.sweep, {**TWO, "rate": "3x", "tp": [1, 2]}),
    "recommend": (servesim.recommend, {**TWO, **FIXED, "rate": "3x", "tp": 1, "scheduler": FLAGS, "intervals": False}),
}
LEFT = ("address", "points")
"""Keys of a document that are not part of the answer."""


def answer(document: Any) -> Any:
    """Return a document without what is not part of the answer."""
    if isinstance(document, dict):
        return {key: answer(value) for key, value in document.items() if key not in LEFT}
    return [answer(value) for value in document] if isinstance(document, list | tuple) else document


def ask(name: str, trace: Path) -> str:
    """Return the runs, the CPU seconds and the hash of a question's answer, in one line."""
    computed = list[Progress]()

    def on_progress(progress: Progress) -> None:
        computed.extend([progress] if progress.computed else [])

    question, words = QUESTIONS[name]
    began = time.process_time()
    frame = question(trace=str(trace), jobs=1, on_progress=on_progress, **words)
    seconds = time.process_time() - began
    text = json.dumps(answer(frame.attrs.get("document", frame.to_dict())), sort_keys=True, default=str)
    text = text.replace(str(trace.parent), "")
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"{name}: {len(computed)} runs, {seconds:.1f} CPU s, answer {digest}"


def main(names: Sequence[str]) -> None:
    """Ask the questions of these names, or all."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "log.csv"
        with (SHARED / AZURE).open() as log:
            trace.write_text("".join(line for line, _ in zip(log, range(ROWS + 1), strict=False)))
        for name in names or QUESTIONS:
            print(ask(name, trace), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
