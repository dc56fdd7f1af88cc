"""Parameters that policies share: frozen dataclasses, which pydantic checks and no build compiles."""

from __future__ import annotations

from dataclasses import dataclass


def check_share(name: str, value: float) -> None:
    """Raise ValueError unless a parameter is a share of something: at least 0, less than 1."""
    if not 0 <= value < 1:
        raise ValueError(f"{name} is {value:g}, must be at least 0 and less than 1")


@dataclass(frozen=True)
class NoParams:
    """Parameters of a policy that has none."""


@dataclass(frozen=True)
class SchedulerParams:
    """Limits nearly every engine has. None: the engine's default for the GPU at hand."""

    max_num_seqs: int | None = None
    """Requests running at once."""
    max_num_batched_tokens: int | None = None
    """Tokens of a step, of prompts and decodes together."""
