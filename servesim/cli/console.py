"""Console of the commands: plain text, wrapped to the width of the window, or unwrapped if written to a file or a
pipe."""

from __future__ import annotations

import os
import sys

from rich.console import Console

UNBOUNDED = 100_000
"""Number of columns if no window limits the line, so that no cell is truncated and no note is wrapped."""


def open_console() -> Console:
    """Open stdout. Brackets and colons are not treated as markup, since names of files and policies may contain them.
    COLUMNS sets the width."""
    bounded = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal()
    return Console(highlight=False, markup=False, emoji=False, width=None if bounded else UNBOUNDED)
