"""Whether the files of a run are as servesim wrote them: what goes wrong with them then is a bug, no damage."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from servesim.errors import UserError
from servesim.untrusted import read_json

DIGESTS = "sha256"
"""Key of timing.json that holds the digests of the other files, by name."""


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a folder, by name."""
    return {path.name: _digest(path) for path in sorted(folder.iterdir())}


def as_written(folder: Path, timing: str) -> bool:
    """Return whether a run's files have the digests that the file `timing` in it holds. False where it holds none."""
    with suppress(OSError, UserError):
        document: Any = read_json(folder / timing)
        kept = document.get(DIGESTS) if isinstance(document, Mapping) else None
        if isinstance(kept, Mapping) and kept:
            return all(_digest(folder / str(name)) == digest for name, digest in kept.items())
    return False


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
