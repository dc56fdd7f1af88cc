"""Atomic file writing: a file is written completely or not at all."""

from __future__ import annotations

import gzip
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from servesim.errors import UserError

MARKS = (
    b'<meta name="generator" content="servesim ',
    b' data-generator="servesim"',
    b'"made_by": "servesim ',
    b'"backend": "servesim"',
    b'"record_processor_id": "servesim"',
    b"row,replica,state,prompt_len,output_len,",
    b"<!-- servesim -->",
)
"""Markers near the beginning of each kind of result file: pages, figures, and all export formats."""
BEGINNING = 4096


def refuse_foreign(path: Path) -> None:
    """Raise UserError if the write would replace a file that servesim did not write."""
    if path.is_symlink():
        raise UserError(f"--out {path}: is a symbolic link; give the path of the file itself")
    if not path.exists():
        return
    if not path.is_file():
        raise UserError(f"--out {path}: exists and is not a regular file")
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            begins = file.read(BEGINNING)
    except (OSError, EOFError):  # not gzip
        begins = b"?"
    if begins and not any(mark in begins for mark in MARKS):
        raise UserError(f"--out {path}: exists and was not written by servesim")


@contextmanager
def writing(path: Path) -> Iterator[TextIO]:
    """Open a temporary text file next to `path` that replaces it at the end; compress it if the name ends in .gz."""
    from servesim.run.result_files import clear_up

    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        clear_up(path)
        try:
            with open(partial, "wb") as raw:
                if path.suffix == ".gz":  # no name or time in it, so that the bytes depend only on the content
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
