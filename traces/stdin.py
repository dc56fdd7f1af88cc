"""Standard input as a trace file: `--trace -`."""

from __future__ import annotations

import atexit
import sys
import tempfile
from functools import cache
from pathlib import Path

from servesim.errors import UserError
from servesim.untrusted import BLOCK, limits, too_much

STDIN, PLACE = "-", "stdin"


@cache
def spooled() -> Path:
    """Copy standard input into a temporary file on the first call, and return the path of the file, which is deleted
    when the process exits."""
    if sys.stdin is None or sys.stdin.isatty():
        raise UserError("trace -: no data on standard input; pipe a log into it, or name a file")
    folder = tempfile.TemporaryDirectory(prefix="servesim-")
    atexit.register(folder.cleanup)
    try:
        return _copied(Path(folder.name) / PLACE)
    except OSError as error:
        folder.cleanup()
        raise UserError(f"trace -: cannot be copied to a temporary file: {error.strerror or error}") from error
    except UserError:
        folder.cleanup()
        raise


def _copied(path: Path) -> Path:
    size, most = 0, limits().stdin
    with path.open("wb") as file:
        while block := sys.stdin.buffer.read(BLOCK):
            size += len(block)
            if size > most:
                raise UserError(
                    f"{too_much('trace -', 'bytes of standard input are', 'stdin')}; or name a file instead"
                )
            file.write(block)
    return path
