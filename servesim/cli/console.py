"""Console of the commands: plain text, wrapped to the window's width; in a file or a pipe, lines are as long as
needed."""

from __future__ import annotations

import os
import sys

from rich.console import Console

UNBOUNDED = 100_000
"""Number of columns if no window limits the line, so that no cell is truncated and no note wrapped."""


def open_console() -> Console:
    """Open stdout. Brackets and colons are not markup, since names of files and policies contain them. COLUMNS sets the
    width."""
    bounded = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal()
    return Console(highlight=False, markup=False, emoji=False, width=None if bounded else UNBOUNDED)
