"""Lengths without times: CSV of num_prefill_tokens,num_decode_tokens[,...], as Vidur and Sarathi-Serve keep them.

All requests are there from the start; give them an arrival process with --shape arrive:process=poisson,rate=5.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from servesim.workload.trace import Trace

from . import _text

NAME = "lengths"
ABOUT = "CSV: num_prefill_tokens,num_decode_tokens, no times"
COLUMNS = ("num_prefill_tokens", "num_decode_tokens")


def detect(head: bytes) -> bool:
    header = _text.header_fields(head)
    return set(COLUMNS) <= set(header) and "arrived_at" not in header


def read(path: Path) -> Trace:
    header, cells, lines = _text.csv_columns(path, COLUMNS)
    prompt, output = (_text.token_counts(path, name, cells[header.index(name)], lines) for name in COLUMNS)
    note = "no times in the file: all requests are there from the start (--shape arrive:... spreads them)"
    return Trace.from_lengths(path.stem, np.zeros(len(lines), dtype=np.int64), prompt, output, notes=(note,))
