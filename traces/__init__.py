"""Request traces: readers and writers of trace formats, synthetic workloads, and fitted presets."""

if "." not in __name__:  # a bare `import traces` would be a second copy with its own registries
    raise ImportError("import servesim.traces instead (run from an installed servesim)")

from servesim.workload.trace_digest import TraceDigest, trace_digest

from .io import load_trace, save_trace
from .open import open_stream, open_trace
from .presets import load_preset, preset_names
from .shape import shape
from .stdin import is_piped
from .synth import synthesize

__all__ = [
    "TraceDigest",
    "is_piped",
    "load_preset",
    "load_trace",
    "open_stream",
    "open_trace",
    "preset_names",
    "save_trace",
    "shape",
    "synthesize",
    "trace_digest",
]
