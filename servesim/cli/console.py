"""Where commands print to: text as it is, in a window's width or, in a file or a pipe, a line as long as it needs."""

from __future__ import annotations

import os
import sys

from rich.console import Console

UNBOUNDED = 100_000
"""Columns where no window bounds a line: no cell is cut, no note wrapped."""


def open_console() -> Console:
    """stdout. Brackets and colons are no markup: names of files and policies hold them. COLUMNS sets the width."""
    bounded = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal()
    return Console(highlight=False, markup=False, emoji=False, width=None if bounded else UNBOUNDED)
