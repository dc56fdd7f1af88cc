"""Reading and writing traces in any format."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from servesim.errors import UserError
from servesim.workload.trace import Trace
from servesim.workload.trace_stream import TraceStream

from .formats import Format, call_read, detect_format, format_module, formats, read_head
from .frame import from_frame
from .stdin import settled

if TYPE_CHECKING:
    import pandas as pd


def load_trace(path: str | Path | pd.DataFrame, format: str | None = None, **options: Any) -> Trace:
    """Load the trace in a file or in a DataFrame (see .frame). A file's format is detected from its content unless it
    is named.

    Formats whose rows have times take `sort=True` (order by arrival instead of raising an error), conversation formats
    take `timing` (see servesim.traces.formats._calls), and Mooncake takes `spread_ticks` ("none" or "uniform") and
    `block_size`. A log with arbitrary column names takes `columns` (see servesim.traces.formats.log). `-` is standard
    input; a pipe is read once.
    """
    if not isinstance(path, str | Path):
        return from_frame(path, **options)
    path = settled(Path(path))
    read_head(path)
    return call_read(_module(path, format, options), path, options)


def _module(path: Path, format: str | None, options: dict[str, Any]) -> Format:
    """Return the format of a file: the named one, or else the detected one. If `columns` is given, a file of
    unrecognized format is read as a log."""
    if format is not None or not options.get("columns"):
        return format_module(format or detect_format(path))
    try:
        module = format_module(detect_format(path))
    except UserError:
        return format_module("log")
    return module if "columns" in inspect.signature(module.read).parameters else format_module("log")


def read_chunks(path: Path, chunk: int) -> TraceStream | None:
    """Open a file, or a folder of files, as a stream of chunks of `chunk` rows; return None if its format cannot be
    read in chunks."""
    module = format_module(detect_format(path))
    stream: TraceStream | None = module.stream(path, chunk) if hasattr(module, "stream") else None
    return stream


def save_trace(trace: Trace, path: str | Path, format: str, *, lossy: bool = False) -> None:
    """Write a trace to a temporary file and rename it, so that a failed write leaves nothing behind.

    A format that cannot hold everything in the trace is rejected unless `lossy` is set.
    """
    module = format_module(format)
    if not hasattr(module, "write"):
        writable = [name for name, m in formats().items() if hasattr(m, "write")]
        raise UserError(f"trace format {format} can only be read; write one of {', '.join(writable)}")
    lost = _features(trace) - module.HOLDS
    if lost and not lossy:
        holders = [name for name, m in formats().items() if lost <= getattr(m, "HOLDS", frozenset())]
        raise UserError(
            f"format {format} cannot store {' and '.join(sorted(lost))} of trace {trace.name}; write "
            f"{', '.join(holders)} instead, or drop this data (--lossy; in Python, lossy=True)"
        )
    path = Path(path).resolve()
    if path.exists() and not path.is_file():
        raise UserError(f"{path}: already exists and is not a regular file")
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        module.write(trace, beside)
        beside.replace(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from error
    finally:
        beside.unlink(missing_ok=True)


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
