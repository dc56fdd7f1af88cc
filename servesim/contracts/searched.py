"""Values that a search for a deployment tries (`servesim recommend`).

The parameters of a scheduler (its `Params`) may have a class attribute `searched` with values by parameter: a range, or
a tuple that begins with the default. A router with the class attribute `searched = True` is tried for several replicas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, NamedTuple


class Span(NamedTuple):
    """Range of whole numbers that a search covers, in powers of 2 times `low`."""

    low: int
    high: int


LIMITS: Mapping[str, Span | tuple[Any, ...]] = {
    "max_num_seqs": Span(16, 1024),
    "max_num_batched_tokens": Span(1024, 32768),
}
"""Values of the limits of nearly every engine (servesim.contracts.params.SchedulerParams)."""


def searched_of(params: type[Any]) -> dict[str, Span | tuple[Any, ...]]:
    """Return the values to try of a scheduler's parameters, by name."""
    known = {field.name for field in fields(params)}
    every = {**LIMITS, **getattr(params, "searched", {})}
    return {name: choices for name, choices in every.items() if name in known}
