"""Step that may count requests instead of listing them."""

from __future__ import annotations

from dataclasses import dataclass

from servesim.records.step import Step

PAUSE = -1


@dataclass(slots=True, init=False)
class FastStep(Step):
    """Step in which `together` requests in lockstep each get a token. They come before those in `sampled`."""

    together: int
    turn: int
    """Turn number of the requests in lockstep, or PAUSE if there are any but they are not in this step."""
