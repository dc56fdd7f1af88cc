"""Parameters that policies share: frozen dataclasses, which pydantic checks and no build compiles."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NoParams:
    """Parameters of a policy that has none."""


@dataclass(frozen=True)
class SchedulerParams:
    """Limits nearly every engine has. None: the engine's default for the GPU at hand."""

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
