"""Reading, writing and identifying traces whatever their format."""

from __future__ import annotations

import hashlib
import inspect
import os
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from servesim.errors import UserError
from servesim.workload.trace import Trace
from servesim.workload.trace_stream import TraceStream

from .formats import Format, call_read, detect_format, format_module, formats, read_head
from .frame import from_frame
from .stdin import STDIN, spooled

if TYPE_CHECKING:
    import pandas as pd


def load_trace(path: str | Path | pd.DataFrame, format: str | None = None, **options: Any) -> Trace:
    """Load the trace in a file, whose format is found from the content unless named, or in a DataFrame (see .frame).

    Formats of rows with times take `sort=True` (order by arrival instead of refusing), those of conversations
    `timing` (see servesim.traces.formats._calls), Mooncake `spread_ticks` ("none" or "uniform") and `block_size`; a
    log of any names takes `columns` (see servesim.traces.formats.log). `-` is standard input.
    """
    if not isinstance(path, str | Path):
        return from_frame(path, **options)
    path = spooled() if str(path) == STDIN else Path(path)
    read_head(path)
    return call_read(_module(path, format, options), path, options)


def _module(path: Path, format: str | None, options: dict[str, Any]) -> Format:
    """Return the format of a file: the named one, else the one it looks like, unless columns are told, which make any
    rows a log."""
    if format is not None or not options.get("columns"):
        return format_module(format or detect_format(path))
    try:
        module = format_module(detect_format(path))
    except UserError:
        return format_module("log")
    return module if "columns" in inspect.signature(module.read).parameters else format_module("log")


def read_chunks(path: Path, chunk: int) -> TraceStream | None:
    """Open a file, or folder of files, of a format that can be read `chunk` rows at a time; None where it cannot."""
    module = format_module(detect_format(path))
    stream: TraceStream | None = module.stream(path, chunk) if hasattr(module, "stream") else None
    return stream


def save_trace(trace: Trace, path: str | Path, format: str, *, lossy: bool = False) -> None:
    """Write a trace under a temporary name and rename it: a failed write leaves nothing.

    A format that cannot hold something the trace has is refused unless `lossy`.
    """
    module = format_module(format)
    if not hasattr(module, "write"):
        writable = [name for name, m in formats().items() if hasattr(m, "write")]
        raise UserError(f"trace format {format} can only be read; write one of {', '.join(writable)}")
    lost = _features(trace) - module.HOLDS
    if lost and not lossy:
        holders = [name for name, m in formats().items() if lost <= getattr(m, "HOLDS", frozenset())]
        raise UserError(
            f"format {format} cannot hold {' and '.join(sorted(lost))} of trace {trace.name}; "
            f"write {', '.join(holders)}, or drop it (--lossy; from Python lossy=True)"
        )
    path = Path(path).resolve()
    if path.exists() and not path.is_file():
        raise UserError(f"{path}: exists and is not a regular file")
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        module.write(trace, beside)
        beside.replace(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from error
    finally:
        beside.unlink(missing_ok=True)


def trace_digest(trace: Trace) -> str:
    """Return the sha256 (hex) of what the simulator sees: all columns, request names, content; not the trace's name."""
    digest = TraceDigest()
    digest.add(trace)
    return digest.hexdigest()


class TraceDigest:
    """The digest of a trace that comes in chunks, whichever they are: a hash of the hashes of its columns."""

    def __init__(self) -> None:
        self._columns: dict[str, Any] = {}
        self._rows = 0

    def add(self, chunk: Trace) -> None:
        """Add the next rows."""
        self._rows += len(chunk)
        for name in ("arrival_ns", "prompt_len", "output_len", "max_tokens", "stop", "priority", "cancel_ns"):
            self._numbers(name, getattr(chunk, name))
        for name in ("content", "after", "samples"):
            part = getattr(chunk, name)
            if part is not None:
                self._numbers(f"{name}.counts", np.diff(part.offsets))
                for column in fields(part)[1:]:
                    self._numbers(f"{name}.{column.name}", getattr(part, column.name))
        self._texts("request_id", chunk.request_id)
        for name, texts in chunk.labels.items():
            self._texts(f"labels.{name}", texts)

    def hexdigest(self) -> str:
        """Return the digest of all rows so far."""
        whole = hashlib.sha256(b"servesim trace 2" + self._rows.to_bytes(8, "little"))
        for name, column in sorted(self._columns.items()):
            whole.update(name.encode() + b"\0" + column.digest())
        return whole.hexdigest()

    def _column(self, name: str) -> Any:
        return self._columns.setdefault(name, hashlib.sha256())

    def _numbers(self, name: str, values: Any) -> None:
        if values is not None:
            self._column(name).update(np.ascontiguousarray(values, dtype=np.dtype("<i8")).data)

    def _texts(self, name: str, texts: tuple[str, ...] | None) -> None:
        if texts is not None:
            encoded = [text.encode() for text in texts]
            self._column(name).update(b"".join(len(data).to_bytes(8, "little") + data for data in encoded))


def _features(trace: Trace) -> set[str]:
    has = {
        "content": trace.content is not None,
        "outputs": trace.content is not None and bool(np.any(trace.content.ids < 0)),
        "priority": bool(np.any(trace.priority != 0)),
        "sessions": trace.after is not None,
        "cancel": trace.cancel_ns is not None,
        "samples": trace.samples is not None,
        **{name: any(values) for name, values in trace.labels.items()},
        "max_tokens": bool(np.any(trace.stop) or np.any(trace.max_tokens != trace.output_len)),
    }
    return {name for name, present in has.items() if present}
