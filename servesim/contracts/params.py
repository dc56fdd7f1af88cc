"""Parameters shared by policies: frozen dataclasses, which pydantic checks and compiled builds leave uncompiled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


def _short(value: float) -> str:
    try:
        return f"{value:g}"
    except OverflowError:  # an integer with hundreds of digits
        return "a number too large to show"


def check_share(name: str, value: float) -> None:
    """Raise ValueError unless a parameter is a share: at least 0, less than 1."""
    if not 0 <= value < 1:
        raise ValueError(f"{name} is {_short(value)} but must be at least 0 and less than 1")


def check_least(params: Any, least: int, *names: str) -> None:
    """Raise ValueError unless each named parameter is at least `least` or None."""
    for name in names:
        value = getattr(params, name)
        if value is not None and value < least:
            raise ValueError(f"{name} is {_short(value)} but must be at least {least}")


def check_most(params: Any, most: float, *names: str) -> None:
    """Raise ValueError unless each named parameter is at most `most` or None."""
    for name in names:
        value = getattr(params, name)
        if value is not None and value > most:
            raise ValueError(f"{name} is {_short(value)} but must be at most {most:g}")


@dataclass(frozen=True)
class NoParams:
    """Empty parameters, for policies that have none."""


@dataclass(frozen=True)
class SchedulerParams:
    """Limits of nearly every engine. None means the engine's default for the GPU in use."""

    max_num_seqs: int | None = None
    """Maximum number of running requests."""
    max_num_batched_tokens: int | None = None
    """Maximum number of tokens in a step, prefill and decode together."""

    def __post_init__(self) -> None:
        check_least(self, 1, "max_num_seqs", "max_num_batched_tokens")
