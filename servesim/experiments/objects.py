"""Traces passed to experiments as Python objects. They are named by their content and stored next to the runs.

DIR/traces/<digest>.parquet

In scenarios, such a trace is `object:NAME@<digest>`, so the same content has the same address regardless of
its origin.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from servesim.errors import UserError
from servesim.run.trace_source import OBJECT
from servesim.workload.trace import Trace

TRACES = "traces"


class Objects(dict[str, Trace]):
    """Traces by the names they have in scenarios."""

    def named(self, value: Any) -> Any:
        """Return settings or axes in which every trace or DataFrame is replaced by a name."""
        if isinstance(value, Trace) or (hasattr(value, "columns") and hasattr(value, "attrs")):  # a DataFrame
            return self.add(value)
        if isinstance(value, Mapping):
            return {key: self.named(inner) for key, inner in value.items()}
        if isinstance(value, Sequence) and not isinstance(value, str):
            return [self.named(inner) for inner in value]
        return value

    def add(self, given: Any) -> str:
        """Add a trace and return the name it has in scenarios."""
        from servesim.traces import load_trace, trace_digest

        trace = given if isinstance(given, Trace) else load_trace(given)
        content = f"{trace_digest(trace)}\0{trace.name}\0{trace.notes}"
        name = f"{OBJECT}{trace.name}@{hashlib.sha256(content.encode()).hexdigest()[:16]}"
        self[name] = trace
        return name

    def keep(self, root: Path) -> None:
        """Write the traces to the place where runs look for them."""
        from servesim.traces import save_trace

        for name, trace in self.items():
            path = root / TRACES / _file(name)
            if not path.exists():
                path.parent.mkdir(exist_ok=True)
                save_trace(trace, path, "parquet")


def title(trace: str) -> str:
    """Return a trace's name for titles, without the prefix and the digest if the trace is an object."""
    return trace.removeprefix(OBJECT).rpartition("@")[0] if trace.startswith(OBJECT) and "@" in trace else trace


def trace_file(settings: Mapping[str, Any], root: Path) -> Path | None:
    """Return the path in `root` where a run's trace is stored, or None if the trace is not an object."""
    name = str(settings.get("trace", ""))
    return root / TRACES / _file(name) if name.startswith(OBJECT) else None


def kept_trace(settings: Mapping[str, Any], root: Path) -> Trace | None:
    """Return the stored trace of a run in `root` if it is an object, or None."""
    from servesim.traces import load_trace

    path = trace_file(settings, root)
    if path is not None and not path.is_file():
        raise UserError(f"trace {settings['trace']} was a Python object: pass it again")
    return load_trace(path, "parquet") if path is not None else None


def _file(name: str) -> str:
    return f"{name.rpartition('@')[2]}.parquet"
