"""A note on the compiled build, said once to a person whose build is not compiled."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from servesim.engine import compiled

COMPILED_FACTOR = 1.6
"""Speed of the compiled build beside the pure one, last measured on Mooncake at eight replicas."""
FASTER = (
    f"a compiled wheel is faster ({COMPILED_FACTOR}x on Mooncake with eight replicas) and gives the same results: "
    "SERVESIM_COMPILE=1 pip install --force-reinstall --no-deps --no-binary servesim servesim compiles it if a C "
    "compiler is installed"
)


def tell_once() -> None:
    """Say so on stderr if that is a terminal, and never again: an empty file in the user's cache folder remembers it.
    Where no file can be made, nothing is said."""
    if compiled() or editable() or not sys.stderr.isatty():
        return
    try:
        marker = _cache() / "servesim" / "told-of-compiled"
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch(exist_ok=False)  # of several at once, one says it
    except (OSError, RuntimeError):  # RuntimeError: no home
        return
    print(f"note: {FASTER} (shown once)", file=sys.stderr)


def editable() -> bool:
    """Return whether servesim runs from a checkout, which a wheel would replace."""
    with suppress(PackageNotFoundError, ValueError):
        record = json.loads(distribution("servesim").read_text("direct_url.json") or "{}")
        return bool(record.get("dir_info", {}).get("editable"))
    return False


def _cache() -> Path:
    if named := os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA"):
        return Path(named)
    return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
