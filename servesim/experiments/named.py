"""Names of variants in sentences: all if they are short, else the first ones and the number of the others."""

from __future__ import annotations

from collections.abc import Sequence

from servesim.contracts.warn import Warn

ROOM = 120
"""Characters up to which names are written out."""


def several(names: Sequence[str], joint: str = "; ", room: int = ROOM) -> str:
    """Join names, or the first ones and the number of the others if they take more than `room` characters."""
    if len(joint.join(names)) <= room or len(names) < 3:
        return joint.join(names)
    shown = max(n for n in range(1, len(names) - 1) if n == 1 or len(joint.join(names[:n])) <= room)
    return f"{joint.join(names[:shown])} and {len(names) - shown} more"


def failures(failed: Sequence[tuple[str, str]]) -> list[str]:
    """Return a warning for each error, given pairs of variant and error."""
    found: dict[str, list[str]] = {}
    for label, error in failed:
        found.setdefault(error, []).append(label)
    return [
        Warn(
            f"{labels[0]} failed: {error}" if len(labels) == 1 else f"{len(labels)} failed ({several(labels)}): {error}"
        )
        for error, labels in found.items()
    ]
