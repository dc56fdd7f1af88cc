"""Single entry point for anything that names a trace: a file, a preset or a synthetic spec."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from servesim.errors import UserError
from servesim.workload import trace_stream
from servesim.workload.trace import Trace
from servesim.workload.trace_stream import TraceStream

from .io import load_trace, read_chunks
from .presets import load_preset, preset_names
from .synth import drawn_in_chunks, synthesize, synthesize_chunks

MOST_REQUESTS = 100_000_000
"""Maximum number of requests in a trace, which is the same as in a scenario."""


def open_stream(spec: str, requests: int | None = None, seed: int = 0) -> TraceStream:
    """Open a trace in chunks. The chunks are drawn or read on demand if the kind of trace allows that; otherwise the
    trace is split in memory (which then holds about 50 bytes per request)."""
    chunk = trace_stream.CHUNK
    kind, _, rest = spec.partition(":")
    if kind == "synth" and drawn_in_chunks(rest):
        return TraceStream(f"synth:{rest.strip()}", lambda: synthesize_chunks(rest, requests, seed, chunk))
    if kind not in ("preset", "synth") and Path(spec).is_file():
        stream = read_chunks(Path(spec), chunk)
        if stream is not None:
            return stream
    return TraceStream.of(open_trace(spec, requests, seed))


def open_trace(spec: str, requests: int | None = None, seed: int = 0, **options: Any) -> Trace:
    """Open the trace of `FILE`, `preset:NAME` or `synth:key=value,...`.

    `requests` limits a file to its first N requests, and sets the number of requests of a preset or synthetic trace.
    `seed` applies only to presets and synthetic traces. `options` are passed to the file's format (`sort`,
    `spread_ticks`).
    """
    kind, _, rest = spec.partition(":")
    if not spec:
        raise UserError("no trace is specified; use a file, preset:NAME or synth:key=value,...")
    if requests is not None and requests > MOST_REQUESTS:
        raise UserError(f"requests is {requests} but must be at most {MOST_REQUESTS:,}")
    if kind in ("preset", "synth"):
        if options:
            raise UserError(f"{spec}: option {next(iter(options))!r} applies only to trace files")
        return load_preset(rest, requests, seed) if kind == "preset" else synthesize(rest, requests, seed)
    if spec in preset_names() and not Path(spec).exists():
        raise UserError(f"{spec}: there is no such trace file. To use the preset with this name, write preset:{spec}")
    trace = load_trace(spec, **options)
    if requests is None:
        return trace
    if not 1 <= requests <= len(trace):
        raise UserError(f"{spec}: requests is {requests}, but the file has only {len(trace)}")
    return trace.take(np.arange(requests, dtype=np.int64))
