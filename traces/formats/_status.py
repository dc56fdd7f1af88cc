"""Failed requests of a log, by a column with a status, an error or a success."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servesim.contracts.warn import Warn
from servesim.errors import shown
from servesim.workload.trace import Ints

from ._names import words
from ._table import Table

FAILED = {"error", "failed", "failure", "timeout", "timed out", "cancelled", "canceled", "aborted", "false",
          "incomplete"}  # fmt: skip
FINE = {"", "none", "null", "false", "0", "nan", "{}"}
"""Contents of an error column without an error."""
COMPLETED = (FINE - {"false"}) | {"ok", "success", "successful", "succeeded", "complete", "completed", "done",
                                  "finished", "stop", "length", "true"}  # fmt: skip
HTTP = re.compile(r"([1-9]\d\d)(?:\.0+)?(?:\s.*)?")
MOST_SHOWN = 3
"""Maximum number of unknown statuses in a warning."""


def is_failed(table: Table, role: dict[str, str]) -> NDArray[np.bool_]:
    """Return which rows are failed requests."""
    failed = np.zeros(len(table.lines), dtype=np.bool_)
    for name, test in (("status", _is_failure), ("error", _is_error)):
        if name in role:
            success = words(role[name]) == ["success"]
            failed |= np.array([test(cell) != success for cell in table.column(role[name])], dtype=np.bool_)
    return failed


def on_unknown_status(table: Table, role: dict[str, str], kept: Ints) -> list[str]:
    """Return a warning if the status of some kept rows says neither success nor failure."""
    if "status" not in role:
        return []
    cells = table.column(role["status"])
    unknown = Counter(text for i in kept.tolist() if not _is_known(text := _text(cells[i])))
    if not unknown:
        return []
    named = ", ".join(f"{shown(text[:40])} ({count:,})" for text, count in unknown.most_common(MOST_SHOWN))
    more = f" and {len(unknown) - MOST_SHOWN} more" if len(unknown) > MOST_SHOWN else ""
    return [
        Warn(
            f"{unknown.total():,} of {len(table.lines):,} rows count as completed, although their "
            f"{shown(role['status'])} is of unknown meaning: {named}{more}; if they failed, write error there, or "
            "remove them"
        )
    ]


def _text(cell: Any) -> str:
    return "" if cell is None else str(cell).strip().lower()


def _is_failure(cell: Any) -> bool:
    text = _text(cell)
    code = HTTP.fullmatch(text)
    return int(code[1]) >= 400 if code else text in FAILED


def _is_known(text: str) -> bool:
    return text in COMPLETED or HTTP.fullmatch(text) is not None


def _is_error(cell: Any) -> bool:
    return _text(cell) not in FINE
