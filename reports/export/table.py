"""One line of CSV a request: every recorded column, times in nanoseconds."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from servesim.reports.export import one_run


def write(folder: Path, file: TextIO) -> None:
    """Write the requests; an empty cell: has not happened."""
    frame = one_run(folder, "csv").requests.convert_dtypes()
    frame.to_csv(file, index=False, lineterminator="\n")
