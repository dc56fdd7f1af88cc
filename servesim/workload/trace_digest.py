"""Identity of a trace: a hash of what the simulator sees of it."""

from __future__ import annotations

import hashlib
from dataclasses import fields
from typing import Any

import numpy as np

from servesim.workload.trace import Trace


def trace_digest(trace: Trace) -> str:
    """Return the sha256 (hex) of everything the simulator sees: all columns, request names and content, but not the
    trace's name."""
    digest = TraceDigest()
    digest.add(trace)
    return digest.hexdigest()


class TraceDigest:
    """Digest of a trace that arrives in chunks, independent of the chunk sizes: a hash of the hashes of its columns."""

    def __init__(self) -> None:
        self._columns: dict[str, Any] = {}
        self._rows = 0
        self._single = 0  # last rows that ask for one sample, while it is not known whether any row asks for several

    def add(self, chunk: Trace) -> None:
        """Add the next rows."""
        self._rows += len(chunk)
        for name in ("arrival_ns", "prompt_len", "output_len", "max_tokens", "stop", "priority", "cancel_ns"):
            self._numbers(name, getattr(chunk, name))
        self._single += len(chunk) if chunk.samples is None else 0
        if chunk.samples is not None:
            self._count_single()
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
        if "samples.counts" in self._columns:
            self._count_single()
        whole = hashlib.sha256(b"servesim trace 2" + self._rows.to_bytes(8, "little"))
        for name, column in sorted(self._columns.items()):
            whole.update(name.encode() + b"\0" + column.digest())
        return whole.hexdigest()

    def _count_single(self) -> None:
        self._numbers("samples.counts", np.zeros(self._single))
        self._single = 0

    def _column(self, name: str) -> Any:
        return self._columns.setdefault(name, hashlib.sha256())

    def _numbers(self, name: str, values: Any) -> None:
        if values is not None:
            self._column(name).update(np.ascontiguousarray(values, dtype=np.dtype("<i8")).data)

    def _texts(self, name: str, texts: tuple[str, ...] | None) -> None:
        if texts is not None:
            encoded = [text.encode() for text in texts]
            self._column(name).update(b"".join(len(data).to_bytes(8, "little") + data for data in encoded))
