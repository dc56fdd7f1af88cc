"""Requests with several samples (n > 1): their output sequences taken together.

A request counts once. Its tokens are the tokens of all samples. Its first token is the first of any sample, it ends
with the last token of all, and it fails if any sample fails.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Columns = dict[str, NDArray[np.int64]]


def requests_of(table: Columns) -> Columns:
    """Return the records of sequences (servesim.records.columns.REQUEST_COLUMNS, in order of rows) as records of
    requests, in order of requests: without the columns `sample` and `request`, but with `samples` (their number) and
    `longest_output_len`."""
    alone = {name: column for name, column in table.items() if name not in ("sample", "request")}
    if not table["sample"].any():
        return alone | {"samples": np.ones_like(table["row"]), "longest_output_len": table["output_len"]}
    number = numbers_of(table)
    order = np.lexsort((table["sample"], number))
    number, answers = number[order], table["sample"][order] >= 0
    starts = np.flatnonzero(np.diff(number, prepend=-1))

    def over(how: np.ufunc, name: str, of: NDArray[np.bool_] | None = None, instead: int = 0) -> NDArray[np.int64]:
        column = table[name][order]
        reduced: NDArray[np.int64] = how.reduceat(column if of is None else np.where(of, column, instead), starts)
        return reduced

    def first(name: str, of: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """Return the earliest time over the samples that have one."""
        never = np.iinfo(np.int64).max
        has = table[name][order] >= 0
        time = over(np.minimum, name, has if of is None else has & of, never)
        return np.where(time == never, -1, time)

    requests = {name: column[order][starts] for name, column in alone.items()}
    requests |= {
        "row": number[starts],
        "max_tokens": over(np.maximum, "max_tokens"),
        "output_len": over(np.add, "output_len", answers),
        "state": over(np.maximum, "state"),
        "arrival_ns": over(np.minimum, "arrival_ns"),
        "scheduled_ns": first("scheduled_ns"),
        "first_token_ns": first("first_token_ns", answers),
        "last_token_ns": over(np.maximum, "last_token_ns", answers, -1),
        "finished_ns": over(np.maximum, "finished_ns"),
        "num_preemptions": over(np.add, "num_preemptions"),
        "recomputed_tokens": over(np.add, "recomputed_tokens"),
        "samples": np.add.reduceat(answers.astype(np.int64), starts),
        "longest_output_len": over(np.maximum, "output_len", answers),
    }
    return requests


def numbers_of(table: Columns) -> NDArray[np.int64]:
    """Return the request of each sequence, by row."""
    return np.where(table["sample"] != 0, table["request"], table["row"])


def reasons_of(table: Columns, reasons: Mapping[int, str]) -> dict[int, str]:
    """Return the reason why each request ended: the reason of the last sample to end among those with the worst
    outcome."""
    if not table["sample"].any() or not reasons:
        return dict(reasons)
    number = numbers_of(table)
    order = np.lexsort((table["row"], table["finished_ns"], table["state"]))
    return {int(number[i]): reasons[int(table["row"][i])] for i in order}
