"""Kernel tables from measurements of one's own: a CSV file with one operator's times.

A row is one call. Its columns are those of the operator (`NEEDED`; servesim.cost.tables says what they mean) and
`time_us`, its time in microseconds on one GPU; `dtype` and `kernel` are optional. Rows of the same call are repeats:
the table has their median, and their pooled spread is its repeat error. Other columns are ignored.
"""

from __future__ import annotations

import datetime
import statistics
from pathlib import Path
from typing import Any

from servesim.calibrate.importers.columns import read_columns, relative_error
from servesim.cost.tables import write_table
from servesim.errors import UserError, suggest

_ROWS = ("m", "n")
_HEADS = ("heads", "kv_heads", "head_dim")
NEEDED = {
    "gemm": ("m", "n", "k"),
    "moe": ("m", "n", "k", "experts", "topk"),
    "attention_prefill": ("batch", "new_tokens", "past_tokens", *_HEADS),
    "attention_decode": ("batch", "past_tokens", *_HEADS),
    "norm": _ROWS,
    "activation": _ROWS,
    "rotary": _ROWS,
    "kv_write": _ROWS,
    "embedding": _ROWS,
    "sampler": _ROWS,
    "all_reduce": ("gpus", "bytes"),
    "all_gather": ("gpus", "bytes"),
}
"""Columns by operator."""
_MAY_BE_ZERO = ("past_tokens",)


def import_csv(path: str | Path, op: str, out_dir: str | Path, dtype: str, gpu: str) -> dict[str, int]:
    """Write the times of an operator as `<op>.parquet`; return the number of rows written, by file name. `dtype` is
    that of rows without one, `gpu` what was measured. Raise UserError if columns are missing or a value is invalid."""
    source = Path(path)
    if op not in NEEDED:
        raise UserError(f"--op {op}: no such operator{suggest(op, NEEDED)} (known: {', '.join(NEEDED)})")
    keys = NEEDED[op]
    columns = read_columns(source, ("time_us",), keys, optional=("dtype", "kernel"))
    calls: dict[tuple[Any, ...], list[float]] = {}  # by dtype and counts
    for row, us in enumerate(columns["time_us"]):
        counts = [columns[name][row] for name in keys]
        for name, count in zip(keys, counts, strict=True):
            if not count and name not in _MAY_BE_ZERO:
                raise UserError(f"{source}: row {row + 1}: {name} is 0 but must be at least 1")
        calls.setdefault((columns["dtype"][row] or dtype, *counts), []).append(us)
    if not calls:
        raise UserError(f"{source}: contains no rows")
    order = sorted(calls)
    found: dict[str, list[object]] = {name: [call[i] for call in order] for i, name in enumerate(("dtype", *keys))}
    if op == "attention_decode":
        found["new_tokens"] = [1] * len(calls)
    found |= {"op": [op] * len(calls), "kernel": [columns["kernel"][0] or "own"] * len(calls)}
    found["time_us"] = [statistics.median(calls[call]) for call in order]
    write_table(Path(out_dir) / f"{op}.parquet", found, _provenance(source, gpu, relative_error(calls.values())))
    return {f"{op}.parquet": len(calls)}


def _provenance(source: Path, gpu: str, error: float | None) -> dict[str, object]:
    told: dict[str, object] = {
        "project": "own measurements",
        "device": gpu,
        "sources": [source.name],
        "imported": datetime.date.today().isoformat(),
    }
    return told if error is None else {**told, "relative_error": error}
