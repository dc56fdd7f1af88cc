"""Console of the commands: plain text, wrapped to the width of the window, or unwrapped if written to a file or a
pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

MOST = 3
"""Maximum number of warnings and other sentences that a command prints below its table without `-v`."""
UNBOUNDED = 100_000
"""Number of columns if no window limits the line, so that no cell is truncated and no note is wrapped."""


def open_console() -> Console:
    """Open stdout. Brackets and colons are not treated as markup, since names of files and policies may contain them.
    COLUMNS sets the width."""
    bounded = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal()
    return Console(highlight=False, markup=False, emoji=False, width=None if bounded else UNBOUNDED)


def print_notes(
    console: Console,
    warnings: Sequence[str],
    lines: Sequence[str],
    notes: Sequence[str],
    out: Path | None,
    verbose: bool,
) -> None:
    """Print what could change the decision (warnings, then `lines`, sentences on how sure the answer is) up to `MOST`,
    the number of those left out, and the directory written to. `verbose`: print all of them, and the notes."""
    first = [(f"warning: {warning}", "yellow") for warning in warnings] + [(line, "") for line in lines]
    rest = [(f"note: {note}", "dim") for note in notes]
    shown = [*first, *rest] if verbose else first[:MOST]
    for text, style in shown:
        console.print(text, style=style)
    if left := len(first) + len(rest) - len(shown):
        hidden = max(len(warnings) - MOST, 0) if not verbose else 0
        kinds = [f"{n} more {kind}{'s' * (n != 1)}" for n, kind in ((hidden, "warning"), (left - hidden, "note")) if n]
        console.print(f"{' and '.join(kinds)}: -v shows {'it' if left == 1 else 'them'}", style="dim")
    if out is not None:
        console.print(f"written to {out}", style="dim")
