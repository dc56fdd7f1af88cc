"""Standard input as a trace file: `--trace -`."""

from __future__ import annotations

import atexit
import sys
import tempfile
from functools import cache
from pathlib import Path

from servesim.errors import UserError
from servesim.untrusted import BLOCK, limits, too_much

STDIN = "-"


@cache
def spooled() -> Path:
    """Copy standard input into a temporary file on the first call, and return the path of the file, which is deleted
    when the process exits."""
    folder = tempfile.TemporaryDirectory(prefix="servesim-")
    atexit.register(folder.cleanup)
    path, size = Path(folder.name) / "stdin", 0
    if sys.stdin is None or sys.stdin.isatty():
        raise UserError("trace -: no data on standard input; pipe a log into it, or name a file")
    with path.open("wb") as file:
        while block := sys.stdin.buffer.read(BLOCK):
            size += len(block)
            if size > limits().bytes:
                raise too_much("trace -", "bytes of standard input are", "bytes")
            file.write(block)
    return path
