"""State machine of a replica, and the clock that drives it."""

from __future__ import annotations

from importlib.util import find_spec


def compiled() -> bool:
    """Return whether this is the compiled build (setup.py). Results are byte-identical either way."""
    spec = find_spec(f"{__name__}.core")
    return spec is not None and not str(spec.origin).endswith(".py")
