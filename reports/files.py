"""Files that are written whole or not at all."""

from __future__ import annotations

import gzip
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from servesim.errors import UserError


@contextmanager
def writing(path: Path) -> Iterator[TextIO]:
    """A text file beside `path` that takes its place in the end; compressed if the name ends in .gz."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        try:
            with open(partial, "wb") as raw:
                if path.suffix == ".gz":  # no name and no time in it, so that the bytes depend on the content alone
                    with gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed, io.TextIOWrapper(packed, "utf-8") as file:
                        yield file
                else:
                    with io.TextIOWrapper(raw, "utf-8", newline="\n") as file:
                        yield file
            partial.replace(path)
        except OSError as error:
            raise UserError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)
