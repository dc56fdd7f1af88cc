"""An arbitrary request log: CSV with any separator, JSON lines, a JSON document, or Parquet, with its own column names.

Columns are guessed from their names (see ._names) and reported in a note; `columns="arrival=Request
Time,prompt=in,output=o"` sets them explicitly (`prompt=2000`: a number instead of a column, `arrival=`: no times,
`unit=us`: the unit of arrival times, `decimal=comma`, `dates=mdy`). Failed requests, and those without tokens, are left
out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from servesim.contracts.warn import Warn
from servesim.errors import UserError, shown
from servesim.workload.trace import Ints, Trace

from ._clock import clock_kind, clock_ns, number
from ._counts import MISSING, beside_of, counts, is_text, numeric, proposed, tokens
from ._dates import date_order
from ._names import UNITS, Columns, of_several, roles, unit_of
from ._numbers import plain_numbers
from ._recorded import Floats, Recorded, trace_of
from ._status import is_failed, on_unknown_status
from ._table import Table, is_table, read_table

NAME = "log"
ABOUT = "CSV, JSONL, JSON or Parquet with columns of its own names: a time, prompt tokens, output tokens"
LOOSE = True
EXAMPLE = "--columns arrival=COLUMN,prompt=COLUMN,output=COLUMN"
MOST_NAMED = 6
"""Maximum number of columns listed in a note."""
MOST_LISTED = 20
"""Maximum number of columns listed in an error, among which the right one is looked for."""
MOST_FAILED = 0.02
"""Maximum share of failed requests that a note mentions; more are a warning, since they are missing from the rate."""
MOST_TOKEN_S = 1.0
"""Median seconds per output token above which latencies are assumed to be in a finer unit."""


def detect(head: bytes) -> bool:
    return is_table(head)


def read(
    path: Path, *, columns: str | Mapping[str, Any] | None = None, timing: str = "think", sort: bool = True
) -> Trace:
    """Read a log; rows are sorted by time whether or not `sort` is set."""
    return of_table(read_table(path), Columns.of(columns), timing)


def recorded(path: Path, columns: str | Mapping[str, Any] | None = None) -> Recorded:
    """Return the requests with their latencies."""
    return _recorded(read_table(path), Columns.of(columns))[0]


def of_table(table: Table, columns: Columns, timing: str = "think") -> Trace:
    """Return the trace in a table whose columns may have any names."""
    log, named = _recorded(table, columns)
    return trace_of(log, timing, named)


def _recorded(table: Table, columns: Columns) -> tuple[Recorded, bool]:
    """Return the requests, and whether the name of the session column identifies sessions."""
    path = table.path
    try:
        role = roles(
            [name for name in table.names if name in columns.given.values() or not is_text(table, name)],
            columns,
            lambda a, b: table.column(a) == table.column(b),
            lambda n: clock_kind(table.column(n)),
        )
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    _check_complete(table, role, columns)
    table, written = plain_numbers(table, *numeric(table, role), columns.decimal)
    _check_single(table, role)
    prompt, output, cached = tokens(table, role, columns)
    kept, why = _kept(table, role, prompt, output)
    lines = [table.lines[i] for i in kept]
    start, ends, told = _times(table, role, columns, kept, lines)
    latency, ttft = (_latency(table, role, name, kept, lines, output[kept]) for name in ("latency", "ttft"))
    if np.isnan(latency).all() and ends is not None and start is not None:
        latency = (ends - start) / 1e6
        latency[latency < 0] = np.nan
    if start is None and ends is not None:
        start = ends - np.rint(latency * 1e6).astype(np.int64)
    notes = [*told, *written, *cached, *why, *_totals(table, role, kept, prompt, output), *_aside(table, role, columns)]
    labels = {label: _texts(table, role[name], kept) for name, label in
              (("tenant", "tenant"), ("model", "model"), ("class", "class")) if name in role}  # fmt: skip
    sessions = role.get("session") or role.get("tenant")
    log = Recorded(
        path,
        lines,
        start if start is not None else np.zeros(len(kept), dtype=np.int64),
        prompt[kept].astype(np.int64),
        output[kept].astype(np.int64),
        ttft,
        latency,
        session=_texts(table, sessions, kept) if sessions else (),
        labels=labels,
        request_id=_texts(table, role["id"], kept) if "id" in role else (),
        model=next(iter(set(labels["model"])), None) if len(set(labels.get("model", ()))) == 1 else None,
        notes=tuple(notes),
    )
    return log, "session" in role


def _check_complete(table: Table, role: dict[str, str], columns: Columns) -> None:
    timed = "arrival" in role or ("end" in role and "latency" in role) or columns.given.get("arrival") == ""
    lacking = {} if timed else {"arrival": "times of arrival"}
    for side in ("prompt", "output"):
        other = "output" if side == "prompt" else "prompt"
        if side not in role and columns.constant(side, table.names) is None and not {"total", other} <= set(role):
            lacking[side] = f"{side} tokens"
    if lacking:
        names = ", ".join(shown(name)[:40] for name in table.names[:MOST_LISTED])
        more = f" and {len(table.names) - MOST_LISTED} more" if len(table.names) > MOST_LISTED else ""
        raise UserError(
            f"{table.path}: no column for {' or '.join(lacking.values())} found among {names}{more}; specify it, "
            f"such as {proposed(table, role, tuple(lacking))}"
        )


def _check_single(table: Table, role: dict[str, str]) -> None:
    """Raise UserError if single rows represent several requests."""
    for name in table.names:
        if name in role.values() or not of_several(name):
            continue
        for cell, line in zip(table.column(name), table.lines, strict=True):
            try:
                several = cell is not None and number(cell) > 1
            except (ValueError, OverflowError):
                break
            if several:
                raise UserError(
                    f"{table.path}: line {line}: {name} is {shown(cell)[:80]}, so each row is the sum of several "
                    "requests. The log must have one request per row."
                )


def _kept(table: Table, role: dict[str, str], prompt: Floats, output: Floats) -> tuple[Ints, list[str]]:
    """Return the rows with an answer, and notes on the other rows."""
    without = np.isnan(prompt) | np.isnan(output) | (output == 0)
    failed = is_failed(table, role)
    kept = np.flatnonzero(~without & ~failed)
    if not len(kept):
        raise UserError(
            f"{table.path}: none of the {len(prompt)} rows is a completed request with prompt and output tokens "
            f"({', '.join(shown(role[n]) for n in ('prompt', 'output', 'status') if n in role)}); specify the "
            f"columns: {EXAMPLE}"
        )
    if len(bad := np.flatnonzero(prompt[kept] < 1)):
        raise UserError(f"{table.path}: line {table.lines[kept[bad[0]]]}: {role['prompt']} is 0 but must be at least 1")
    notes = []
    if failed.any():
        count, column = int(failed.sum()), shown(role.get("status") or role["error"])
        said = f"skipped {count:,} of {len(prompt):,} requests because they failed ({column})"
        many = Warn(
            f"{said}, so the rate covers only the other requests. Raise it with --rate if the server refused "
            "the failed requests."
        )
        notes.append(many if count > MOST_FAILED * len(prompt) else said)
    if rest := int((without & ~failed).sum()):
        notes.append(f"skipped {rest:,} of {len(prompt):,} requests because they have no prompt or output tokens")
    return kept, notes + on_unknown_status(table, role, kept)


def _times(
    table: Table, role: dict[str, str], columns: Columns, kept: Ints, lines: list[int]
) -> tuple[Ints | None, Ints | None, list[str]]:
    """Return the arrival times, the end times if known, and notes on how they were read."""
    found: dict[str, Ints | None] = {"arrival": None, "end": None}
    notes = []
    clocks = {name: _of(table.column(name), kept) for name in (role[side] for side in found if side in role)}
    order = date_order(table.path, clocks, lines, columns.dates)
    for name in found:
        if name in role:
            stated = table.units.get(role[name])
            named = stated or unit_of(role[name])
            found[name], note = clock_ns(
                table.path, role[name], clocks[role[name]], lines, stated or columns.unit, named, order
            )
            if name == "arrival" or found["arrival"] is None:
                notes.append(note)
    if "arrival" not in role:
        notes = notes or ["no times: all requests arrive at the start (--shape arrive:process=poisson,rate=5)"]
    named_sides = [f"{side} tokens from {shown(role[side])}" for side in ("prompt", "output") if side in role]
    return found["arrival"], found["end"], [*notes, *([", ".join(named_sides)] if named_sides else [])]


def _of(cells: list[Any], kept: Ints) -> list[Any]:
    return [cells[i] for i in kept.tolist()]


def _latency(table: Table, role: dict[str, str], name: str, kept: Ints, lines: list[int], output: Floats) -> Floats:
    """Return a column of latencies in ms, with NaN for missing ones."""
    if name not in role:
        return np.full(len(kept), np.nan)
    values = np.full(len(kept), np.nan)
    cells = table.column(role[name])
    for i, row in enumerate(kept.tolist()):
        cell = cells[row]
        if cell is None or cell != cell or (isinstance(cell, str) and cell.strip().lower() in MISSING):
            continue
        try:
            values[i] = number(cell)
            if values[i] < 0:
                raise ValueError
        except (ValueError, OverflowError):
            raise UserError(
                f"{table.path}: line {lines[i]}: {role[name]} is {shown(cell)[:80]} but must be a time of at least 0"
            ) from None
    unit = unit_of(role[name]) or _unit_of_latency(values / (output if name == "latency" else 100))
    return np.asarray(values * (UNITS[unit] / 1e6))


def _unit_of_latency(per_token: Floats) -> str:
    """Return the coarsest unit in which the median time per token is below a second."""
    known = per_token[np.isfinite(per_token)]
    median = float(np.median(known)) if len(known) else 1.0
    return next((unit for unit, factor in UNITS.items() if median * factor / 1e9 < MOST_TOKEN_S), "ns")


def _totals(table: Table, role: dict[str, str], kept: Ints, prompt: Floats, output: Floats) -> list[str]:
    if not {"total", "prompt", "output"} <= set(role):
        return []
    total = counts(table, role["total"])[kept]
    other = int(np.sum(np.isfinite(total) & (total != prompt[kept] + output[kept])))
    told = f"{shown(role['total'])} is not the sum of prompt and output tokens in {other:,} of {len(kept):,} rows"
    return [told] if other else []


def _aside(table: Table, role: dict[str, str], columns: Columns) -> list[str]:
    used = {*role.values(), *beside_of(table, role, "prompt"), *beside_of(table, role, "output")}
    used |= {column for column in columns.given.values() if column}
    rest = [name for name in table.names if name not in used]
    more = f" and {len(rest) - MOST_NAMED} more" if len(rest) > MOST_NAMED else ""
    return [f"extra columns not used: {', '.join(rest[:MOST_NAMED])}{more}"] if rest else []


def _texts(table: Table, name: str, kept: Ints) -> tuple[str, ...]:
    return tuple(["" if cell is None else str(cell) for cell in _of(table.column(name), kept)])
