"""CSV with one line per request: every recorded column, times in nanoseconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TextIO

from servesim.reports.export import one_run


def write(folder: Path, file: TextIO) -> None:
    """Write the requests. An empty cell means that the event has not happened. Text that a spreadsheet would read as a
    formula is prefixed with an apostrophe (OWASP, CSV injection); numbers stay numbers."""
    frame: Any = one_run(folder, "csv").requests.convert_dtypes()
    texts: list[str] = frame.select_dtypes("string").columns.tolist()
    for name in texts:
        risky = frame[name].str.match(r"[=+\-@\t\r]", na=False)
        frame[name] = frame[name].mask(risky, "'" + frame[name])
    frame.to_csv(file, index=False, lineterminator="\n")
