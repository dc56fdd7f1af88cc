"""Reading, writing and identifying traces whatever their format."""

from __future__ import annotations

import hashlib
import os
from dataclasses import fields
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from servesim.errors import UserError
from servesim.trace import Trace

from .formats import call_read, detect_format, format_module, formats, read_head
from .frame import from_frame

if TYPE_CHECKING:
    import pandas as pd


def load_trace(path: str | Path | pd.DataFrame, format: str | None = None, **options: Any) -> Trace:
    """The trace in a file, whose format is found from the content unless named, or in a DataFrame (see .frame).

    Formats of rows with times take `sort=True` (order by arrival instead of refusing), those of conversations
    `timing` (see servesim.traces.formats._calls), Mooncake `spread_ticks` ("none" or "uniform") and `block_size`.
    """
    if not isinstance(path, str | Path):
        return from_frame(path, **options)
    path = Path(path)
    read_head(path)
    return call_read(format_module(format or detect_format(path)), path, options)


def save_trace(trace: Trace, path: str | Path, format: str, *, lossy: bool = False) -> None:
    """Write a trace, beside first and then renamed: a failed write leaves nothing.

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
        raise UserError(f"{path}: exists and is not a file")
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        module.write(trace, beside)
        beside.replace(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from error
    finally:
        beside.unlink(missing_ok=True)


def trace_digest(trace: Trace) -> str:
    """sha256 (hex) of what the simulator sees: all columns, request names, content; not the trace's name."""
    digest = hashlib.sha256(b"servesim trace 1")
    names = ("arrival_ns", "prompt_len", "output_len", "max_tokens", "stop", "priority")
    columns = [getattr(trace, name) for name in names]
    if trace.content is not None:
        columns += [trace.content.offsets, trace.content.ids, trace.content.lengths]
    if trace.after is not None:
        columns += [getattr(trace.after, f.name) for f in fields(trace.after)]
    if trace.cancel_ns is not None:
        columns.append(trace.cancel_ns)
    for column in columns:
        digest.update(len(column).to_bytes(8, "little"))
        digest.update(np.ascontiguousarray(column, dtype=np.dtype("<i8")).tobytes())
    texts = [trace.request_id or (), *(part for name in sorted(trace.labels) for part in ((name,), trace.labels[name]))]
    for text in chain.from_iterable(texts):
        data = text.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def _features(trace: Trace) -> set[str]:
    has = {
        "content": trace.content is not None,
        "outputs": trace.content is not None and bool(np.any(trace.content.ids < 0)),
        "priority": bool(np.any(trace.priority != 0)),
        "sessions": trace.after is not None,
        "cancel": trace.cancel_ns is not None,
        **{name: any(values) for name, values in trace.labels.items()},
        "max_tokens": bool(np.any(trace.stop) or np.any(trace.max_tokens != trace.output_len)),
    }
    return {name for name, present in has.items() if present}
