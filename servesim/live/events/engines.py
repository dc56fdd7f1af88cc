"""Engines whose events have known formats."""

from __future__ import annotations

from servesim.errors import UserError
from servesim.run.scenario import Scenario

ENGINES = ("vllm", "sglang")


def engine_of(scenario: Scenario, option: str) -> str:
    """Return the engine of a scenario. Raise UserError if the format of its events is unknown."""
    engine = scenario.preset or "vllm"
    if engine not in ENGINES:
        raise UserError(f"{option}: the format of {engine} is unknown, only those of {' and '.join(ENGINES)} are known")
    return engine
