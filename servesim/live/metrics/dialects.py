"""Which engine's metrics a deployment shows."""

from __future__ import annotations

from servesim.live.metrics.dialect import Dialect
from servesim.live.metrics.sglang import SGLANG
from servesim.live.metrics.trtllm import TRTLLM
from servesim.live.metrics.vllm import VLLM
from servesim.run.scenario import Scenario


def dialect_of(scenario: Scenario) -> Dialect:
    """Return the metrics of a scenario's engine, which its preset names or, without one, its scheduler. Engines without
    metrics of their own here have vLLM's."""
    name = scenario.preset or scenario.scheduler["name"]
    return {"sglang": SGLANG, "tensorrt-llm": TRTLLM}.get(str(name), VLLM)
