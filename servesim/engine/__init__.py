"""The state machine of a replica, and the clock that drives it."""

from __future__ import annotations

from importlib.util import find_spec


def compiled() -> bool:
    """Whether this build is the compiled one (setup.py). The bytes of a result do not depend on it."""
    spec = find_spec(f"{__name__}.core")
    return spec is not None and not str(spec.origin).endswith(".py")
