"""Simulator of LLM inference serving: replay a request trace through pluggable policies at measured kernel costs.

import servesim
result = servesim.simulate(trace="preset:azure-conv-2023", model="llama-3.1-8b", gpu="h200")
print(result.summary["latency_ms"]["ttft"], result.requests.head())
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from servesim.errors import PolicyError, UserError
    from servesim.experiments.capacity import capacity
    from servesim.experiments.compare import compare
    from servesim.experiments.recommend.recommend import recommend
    from servesim.experiments.sweep import sweep
    from servesim.experiments.worth import worth
    from servesim.run.result import Result
    from servesim.run.scenario import Scenario
    from servesim.run.simulate import simulate
    from servesim.workload.trace import Trace

__version__ = "0.1.0"
__all__ = [
    "PolicyError",
    "Result",
    "Scenario",
    "Trace",
    "UserError",
    "capacity",
    "compare",
    "figure",
    "figures",
    "lecture",
    "load_trace",
    "recommend",
    "report",
    "simulate",
    "sweep",
    "worth",
]

_HOME = {
    "PolicyError": "servesim.errors",
    "Result": "servesim.run.result",
    "Scenario": "servesim.run.scenario",
    "Trace": "servesim.workload.trace",
    "UserError": "servesim.errors",
    "capacity": "servesim.experiments.capacity",
    "compare": "servesim.experiments.compare",
    "figure": "servesim.reports.drawings",
    "figures": "servesim.reports.drawings",
    "lecture": "servesim.reports.lecture",
    "load_trace": "servesim.traces",
    "recommend": "servesim.experiments.recommend.recommend",
    "report": "servesim.reports.report",
    "simulate": "servesim.run.simulate",
    "sweep": "servesim.experiments.sweep",
    "worth": "servesim.experiments.worth",
}


def __getattr__(name: str) -> Any:
    """Import public names on first use, so that `import servesim` and `servesim --help` stay fast."""
    if name not in _HOME:
        raise AttributeError(f"module 'servesim' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
