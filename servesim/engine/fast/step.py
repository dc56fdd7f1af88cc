"""A step in which requests may be counted instead of listed."""

from __future__ import annotations

from dataclasses import dataclass

from servesim.records.step import Step

PAUSE = -1


@dataclass(slots=True, init=False)
class FastStep(Step):
    """Before those in `sampled`, `together` requests in lockstep get a token."""

    together: int
    turn: int
    """Number of the turn of those in lockstep; PAUSE: they take no part, though there are some."""
