"""Standard input and named pipes as trace files: `--trace -`, `--trace <(zcat log.gz)`."""

from __future__ import annotations

import atexit
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import BinaryIO, TypeGuard

from servesim.compressed import BLOCK
from servesim.errors import UserError
from servesim.limits import limits, too_much

STDIN, PLACE = "-", "stdin"


@cache
def spooled() -> Path:
    """Copy standard input into a temporary file on the first call, and return the path of the file. The file is deleted
    when the process exits."""
    if sys.stdin is None or sys.stdin.isatty():
        raise UserError("trace -: no data on standard input; pipe a log into it, or specify a file")
    return _copied(sys.stdin.buffer, PLACE, "trace -")


def is_piped(trace: object) -> TypeGuard[str | Path]:
    """Return whether a trace can be read only once: standard input, or a named pipe."""
    return isinstance(trace, str | Path) and (str(trace) == STDIN or Path(trace).is_fifo())


def settled(path: Path) -> Path:
    """Return the path of a file that can be read several times: the path itself, or that of a copy of what a pipe
    delivers."""
    if str(path) == STDIN:
        return spooled()
    if not path.is_fifo():
        return path
    with path.open("rb") as pipe:  # waits for a writer
        return _copied(pipe, path.name, f"trace {path}")


def _copied(source: BinaryIO, name: str, where: str) -> Path:
    folder = tempfile.TemporaryDirectory(prefix="servesim-")
    atexit.register(folder.cleanup)
    try:
        return _written(source, Path(folder.name) / name, where)
    except OSError as error:
        folder.cleanup()
        raise UserError(f"{where}: cannot be copied to a temporary file: {error.strerror or error}") from error
    except UserError:
        folder.cleanup()
        raise


def _written(source: BinaryIO, path: Path, where: str) -> Path:
    size, most = 0, limits().stdin
    with path.open("wb") as file:
        while block := source.read(BLOCK):
            size += len(block)
            if size > most:
                raise UserError(f"{too_much(where, 'bytes of a pipe are', 'stdin')}; or specify a file instead")
            file.write(block)
    return path
