"""Names of variants in sentences: all if they are short, else the first ones and the number of the others; what is said
of several is said once."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

from servesim.contracts.warn import Warn

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
ROOM = 120
"""Characters up to which names are written out."""


def several(names: Sequence[str], joint: str = "; ", room: int = ROOM) -> str:
    """Join names, or the first ones and the number of the others if they take more than `room` characters."""
    if len(joint.join(names)) <= room or len(names) < 3:
        return joint.join(names)
    shown = max(n for n in range(1, len(names) - 1) if n == 1 or len(joint.join(names[:n])) <= room)
    return f"{joint.join(names[:shown])} and {len(names) - shown} more"


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the values of each key, given pairs of both, in the order in which keys first appear."""
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def failures(failed: Sequence[tuple[str, str]]) -> list[str]:
    """Return a warning for each error, given pairs of variant and error."""
    return [
        Warn(f"{f'{len(labels)} failed ({several(labels)})' if labels[1:] else f'{labels[0]} failed'}: {error}")
        for error, labels in grouped((error, label) for label, error in failed).items()
    ]
