"""Listeners to one prefix cache."""

from __future__ import annotations

from collections.abc import Callable

from servesim.contracts.kv_events import KVEvent

Listener = Callable[[KVEvent], None]


def heard_also(others: Listener | None, listener: Listener) -> Listener:
    """Return a listener that tells the others, if any, and then this one."""
    if others is None:
        return listener

    def both(event: KVEvent) -> None:
        others(event)
        listener(event)

    return both
