"""Trace formats: one module per format, found by listing this folder, or one table row (._columns) if the format
consists only of CSV columns.

A format module (its name must not begin with `_`) defines

    NAME: str                                 name used by `--format` and error messages
    ABOUT: str                                one line: columns and units
    detect(head: bytes) -> bool               whether a file with this beginning looks like this format
    read(path: Path, **options) -> Trace      keyword-only options; UserError names the line
    write(trace: Trace, path: Path) -> None   if the format can be written, with
    HOLDS: frozenset[str]                     the trace features (servesim.traces.io) that the format keeps
    stream(path: Path, chunk: int) -> TraceStream   if it can be read a few rows at a time
    confirm(path: Path) -> bool               if the start of a file does not identify it (Parquet)
    recorded(path: Path) -> Recorded          if it contains latencies: the measured side of comparisons (._recorded)
    LOOSE = True                              if it guesses: it is tried after all others

`head` is the first 64 KiB of the file, decompressed if it is gzipped. A format with `FOLDERS = True` also reads a
folder of its files. Files are recognized by content, never by name. To add a format, add a file or a table row.
"""

from __future__ import annotations

import gzip
import importlib
import inspect
import pkgutil
import zlib
from functools import lru_cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from servesim.compressed import DAMAGED, open_bytes
from servesim.errors import UserError, shown, suggest
from servesim.workload.trace import Trace

HEAD_BYTES = 1 << 16
Format = ModuleType | SimpleNamespace


@lru_cache(maxsize=1)
def formats() -> dict[str, Format]:
    """Return all formats by NAME, sorted by module name or by name in the table."""
    from ._columns import COLUMN_FORMATS, as_module

    names = [m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")]
    found: dict[str, Format] = {name: importlib.import_module(f"{__name__}.{name}") for name in names}
    found |= {row.name: as_module(row) for row in COLUMN_FORMATS}
    return {module.NAME: module for _, module in sorted(found.items())}


def read_head(path: Path) -> bytes:
    """Return the first bytes of a file; raise UserError with a clear one-line message if there are none."""
    if path.is_dir():
        path = first_of(path)
    if not path.exists():
        raise UserError(f"{path}: no such trace file")
    try:
        with open_bytes(path) as file:
            head: bytes = file.read(HEAD_BYTES)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: {DAMAGED}") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    if not head.strip():
        raise UserError(f"{path}: the file is empty; a trace needs at least one request")
    return head


def first_of(folder: Path) -> Path:
    """Return the first file of a folder whose JSON files each contain one session, or whose Parquet files together form
    a trace."""
    files = sorted(folder.glob("*.json*")) or sorted(folder.glob("*.parquet"))
    if not files:
        raise UserError(f"{folder}: not a trace: the folder has no session files (*.json) or Parquet files")
    return files[0]


def detect_format(path: Path) -> str:
    """Return the name of the only format that matches the file's content."""
    head = read_head(path)
    for name, module in sorted(formats().items(), key=lambda item: getattr(item[1], "LOOSE", False)):
        if module.detect(head) and (not hasattr(module, "confirm") or module.confirm(path)):
            return name
    kind = "binary data" if b"\x00" in head else f"beginning {_excerpt(head)}"
    raise UserError(
        f"{path}: unknown trace format ({kind}); each row needs a time, prompt tokens and output tokens, such as CSV "
        "with timestamp,prompt_tokens,completion_tokens (servesim trace list shows all formats)"
    )


def format_module(name: str) -> Format:
    """Return the module of a named format."""
    if name not in formats():
        raise UserError(f"unknown trace format {shown(name)}{suggest(name, formats())}")
    return formats()[name]


def call_read(module: Format, path: Path, options: dict[str, Any]) -> Trace:
    """Call the format's `read` with the given options; raise UserError naming any option that it does not support."""
    known = [p.name for p in inspect.signature(module.read).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for option in options:
        if option not in known:
            raise UserError(f"{path}: format {module.NAME} has no option {option!r}{suggest(option, known)}")
    if path.is_dir() and not getattr(module, "FOLDERS", False):
        raise UserError(f"{path}: is a folder, but format {module.NAME} needs a single file")
    trace: Trace = module.read(path, **options)
    return trace


def _excerpt(head: bytes) -> str:
    line = head.split(b"\n", 1)[0][:60].decode("utf-8", errors="replace")
    return repr(line)
