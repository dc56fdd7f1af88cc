"""Baseten's completion traces, as AIPerf replays them (0.13): Parquet, one request per row.

timestamp_start_unix_ms, input_tokens, output_tokens; optional provided_session_id or poor_man_session_id, total_hashes
with block_size (blocks of the prompt), duration_e2e_ms, duration_ttft_ms. A turn is sent at its recorded time or when
the previous one has its answer, whichever is later (timing "original").
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from servesim.errors import UserError
from servesim.workload.trace import Trace

from . import _text
from ._calls import Runs
from ._parquet import parquet_names
from ._recorded import Recorded, trace_of
from ._table import parquet_table

NAME = "baseten"
ABOUT = (
    "Parquet files of Baseten: timestamp_start_unix_ms, input_tokens, output_tokens[, provided_session_id, "
    "total_hashes]"
)
FOLDERS = True
SESSIONS = ("provided_session_id", "poor_man_session_id")


def detect(head: bytes) -> bool:
    return head.startswith(b"PAR1")


def confirm(path: Path) -> bool:
    return {"timestamp_start_unix_ms", "input_tokens", "output_tokens"} <= set(parquet_names(path))


def read(path: Path, *, timing: str = "original") -> Trace:
    return trace_of(recorded(path), timing)


def recorded(path: Path) -> Recorded:
    """Return the requests with their latencies."""
    names = parquet_names(path)
    table = parquet_table(path, lists=("total_hashes",))
    output = table.column("output_tokens")
    kept = [i for i, tokens in enumerate(output) if tokens]
    lines = [table.lines[i] for i in kept]

    def cells(name: str) -> list[Any]:
        column = table.column(name)
        return [column[i] for i in kept]

    def latency(name: str) -> Any:
        found = [np.nan if cell is None else float(cell) for cell in cells(name)] if name in names else ()
        return np.array(found) if name in names else np.full(len(kept), np.nan)

    if not kept:
        raise UserError(f"{path}: no request with output tokens")
    session = next((name for name in SESSIONS if name in names), None)
    prompt = _text.token_counts(path, "input_tokens", cells("input_tokens"), lines)
    hashed = {"total_hashes", "block_size"} <= set(names)
    left = len(output) - len(kept)
    return Recorded(
        path,
        lines,
        _text.times_ns(path, "timestamp_start_unix_ms", cells("timestamp_start_unix_ms"), lines, 1_000_000),
        prompt,
        _text.token_counts(path, "output_tokens", cells("output_tokens"), lines),
        latency("duration_ttft_ms"),
        latency("duration_e2e_ms"),
        session=tuple(["" if s is None else str(s) for s in cells(session)]) if session else (),
        runs=_contents(path, lines, prompt.tolist(), cells("total_hashes"), cells("block_size")) if hashed else [],
        notes=(f"skipped {left:,} requests without output tokens",) if left else (),
    )


def _contents(path: Path, lines: list[int], prompts: list[int], hashes: list[Any], sizes: list[Any]) -> list[Runs]:
    """Return prompts as runs of their blocks, each followed by a unique text for the part that no hash covers."""
    numbers: dict[int, int] = {}
    found: list[Runs] = []
    texts: list[tuple[int, int]] = []
    for line, prompt, blocks, size in zip(lines, prompts, hashes, sizes, strict=True):
        if blocks and (not isinstance(size, int) or size < 1 or (len(blocks) - 1) * size >= prompt):
            raise UserError(
                f"{path}: row {line}: {len(blocks)} hashes do not match blocks of {size} tokens in a prompt of "
                f"{prompt} tokens"
            )
        runs = [(numbers.setdefault(h, len(numbers)), min(size, prompt - i * size)) for i, h in enumerate(blocks or ())]
        rest = prompt - sum(length for _, length in runs)
        if rest:
            texts.append((len(found), len(runs)))
            runs.append((-1, rest))  # numbered below, after all hashes
        found.append(runs)
    for number, (row, place) in enumerate(texts, start=len(numbers)):
        found[row][place] = (number, found[row][place][1])
    return found
