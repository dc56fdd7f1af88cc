"""Token counts in the columns of a log, and columns to propose for what a log lacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from servesim.errors import UserError, shown

from . import _text
from ._clock import EPOCH, iso_ns, number
from ._dates import is_date
from ._names import UNITS, Columns, beside, words
from ._recorded import Floats
from ._table import Table

MISSING = {"", "nan", "null", "none", "na", "n/a", "-", "nat"}
_BARE = ({"prompt"}, {"input"}, {"output"}, {"completion"}, {"response"})
_LOOKED_AT = 200
"""Maximum number of cells inspected to propose the meaning of a column."""


def is_missing(cell: Any) -> bool:
    """Return whether a cell holds no value."""
    return cell is None or cell != cell or (isinstance(cell, str) and cell.strip().lower() in MISSING)


def is_text(table: Table, name: str) -> bool:
    """Return whether a column with a name such as `input` holds text instead of token counts."""
    if set(words(name)) not in _BARE:
        return False
    first = next((cell for cell in table.column(name) if not is_missing(cell)), 0)
    return isinstance(first, str) and not first.strip()[:1].isdecimal()


def numeric(table: Table, role: dict[str, str]) -> tuple[list[str], list[str]]:
    """Return the columns that hold numbers, and those among them that count tokens."""
    sides = [name for side in ("prompt", "output") for name in beside_of(table, role, side)]
    whole = [role[name] for name in ("prompt", "output", "total") if name in role] + sides
    times = [role[name] for name in ("arrival", "end", "latency", "ttft") if name in role]
    return [*whole, *times], whole


def tokens(table: Table, role: dict[str, str], columns: Columns) -> tuple[Floats, Floats, list[str]]:
    """Return prompt and output lengths (NaN if a row has none), including tokens that the log counts in separate
    columns, and notes on these columns and on how many tokens came from the server's cache, if a column records
    this."""
    side = {name: _side(table, role, columns, name) for name in ("prompt", "output")}
    more = {name: beside_of(table, role, name) for name in side}
    added = {name: sum((np.nan_to_num(counts(table, one)) for one in more[name]), 0 * side[name]) for name in side}
    if "total" in role and any(more.values()):  # the total tells whether the other counts include the finer ones
        rest = counts(table, role["total"]) - side["prompt"] - side["output"]
        finer = added["prompt"] + added["output"]
        if np.sum((rest == 0) & (finer > 0)) > np.sum((rest == finer) & (finer > 0)):
            more, added = {"prompt": [], "output": []}, dict.fromkeys(side, np.zeros(1))
    notes = [f"{name} tokens include {' and '.join(map(shown, found))}" for name, found in more.items() if found]
    prompt, output = (side[name] + added[name] for name in ("prompt", "output"))
    return prompt, output, [*notes, *_hits(table, more["prompt"], prompt)]


def beside_of(table: Table, role: dict[str, str], side: str) -> list[str]:
    """Return the columns that count tokens which the main column of a side may exclude."""
    return [name for name in beside(table.names, role[side], side) if name not in role.values()] if side in role else []


def _hits(table: Table, included: Sequence[str], prompt: Floats) -> list[str]:
    """Return a note on the prompt tokens that came from the server's cache."""
    cached = [name for name in table.names if {"cached", "tokens"} <= set(words(name)) and "output" not in words(name)]
    hits = [name for name in included if {"read", "cached"} & set(words(name))] or cached[:1]
    total = float(np.nansum(prompt))
    if not hits or not total or not (found := float(np.nansum(counts(table, hits[0])))):
        return []
    return [
        f"the server found {found / total:.1%} of prompt tokens in its cache ({shown(hits[0])}), but the log "
        "does not record the content of prompts, so this run has no prefix hits. Define shared tokens with --shape "
        "share:tokens=N."
    ]


def _side(table: Table, role: dict[str, str], columns: Columns, side: str) -> Floats:
    constant = columns.constant(side, table.names)
    if constant is not None:
        return np.full(len(table.lines), float(constant))
    if side in role:
        return counts(table, role[side])
    total, other = counts(table, role["total"]), counts(table, role["output" if side == "prompt" else "prompt"])
    return np.where(total >= other, total - other, np.nan)


def counts(table: Table, name: str) -> Floats:
    """Return a column of token counts, with NaN for missing ones; raise UserError naming the line of any other cell."""
    found = np.full(len(table.lines), np.nan)
    for i, cell in enumerate(table.column(name)):
        if is_missing(cell):
            continue
        try:
            value = number(cell)
            if value != int(value) or not 0 <= value <= _text.MAX_TOKENS:
                raise ValueError
        except (ValueError, OverflowError):
            raise UserError(
                f"{table.path}: line {table.lines[i]}: {name} is {shown(cell)[:80]} "
                "but must be a whole number of tokens"
            ) from None
        found[i] = value
    return found


def proposed(table: Table, role: dict[str, str], lacking: Sequence[str]) -> str:
    """Return the `--columns` option to suggest for the meanings that a log lacks: columns whose contents fit, in file
    order."""
    free = [name for name in table.names if name not in role.values()]
    could: dict[str, list[str]] = {"arrival": [], "prompt": []}
    for name in free:
        cells = [cell for cell in table.column(name)[:_LOOKED_AT] if not is_missing(cell)]
        for meaning, fits in (("arrival", _is_clock), ("prompt", _is_count)):
            if cells and all(map(fits, cells)):
                could[meaning].append(name)
                break
    could["output"] = could["prompt"]
    named = []
    for meaning in lacking:
        name = could[meaning].pop(0) if could[meaning] else "COLUMN"
        quoted = f"'{name}'" if not set(name).isdisjoint(" ,=") else name
        named.append(f"{meaning}={'COLUMN' if not set(name).isdisjoint(_UNQUOTABLE) or len(name) > 40 else quoted}")
    return f'--columns "{",".join(named)}"'


_UNQUOTABLE = "'\"\\$`"


def _is_clock(cell: Any) -> bool:
    if isinstance(cell, str) and (iso_ns(cell) is not None or is_date(cell)):
        return True
    try:
        return any(EPOCH[0] <= number(cell) * factor / 1e9 < EPOCH[1] for factor in UNITS.values())
    except (ValueError, OverflowError):
        return False


def _is_count(cell: Any) -> bool:
    try:
        value = number(cell)
    except (ValueError, OverflowError):
        return False
    return 0 <= value <= _text.MAX_TOKENS and value == int(value)
