"""Dynamo's planner: the autoscaler `dynamo-planner` as a component of a graph, written and read.

Keys are those of PlannerConfig (ai-dynamo/dynamo, components/src/dynamo/planner/config/planner_config.py) as the graphs
of its examples in v1beta1 have them; older names of the same keys are read, too."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from servesim.contracts.scaler import scalers
from servesim.contracts.section import Settings
from servesim.errors import UserError
from servesim.launch.routers import typed
from servesim.launch.workers import Read, Worker
from servesim.untrusted import json_value

NAME = "dynamo-planner"
MODES = {"agg": ("both",), "disagg": ("prefill", "decode"), "prefill": ("prefill",), "decode": ("decode",)}
"""Roles of the pools that the planner scales, by its mode."""
KEYS = {
    "min": ("min_endpoint",),
    "predictor": ("load_predictor",),
    "ttft_ms": ("ttft_ms", "ttft"),
    "itl_ms": ("itl_ms", "itl"),
    "throughput_s": ("throughput_adjustment_interval_seconds", "throughput_adjustment_interval"),
    "load_s": ("load_adjustment_interval_seconds", "load_adjustment_interval"),
    "max_gpu_budget": ("max_gpu_budget",),
}
"""Keys of the configuration by parameter: the one that is written, and its older names."""
LOOPS = {(True, False): "throughput", (False, True): "load", (True, True): "both"}
"""Loops by the switches of throughput and load scaling."""
_PERCENT = 100


def planner_arguments(workers: Sequence[Worker]) -> list[str] | None:
    """Return the words after `python3` that start the planner, or None if no pool names it, if pools name it with
    different parameters, or if it has no mode for them."""
    own = [worker for worker in workers if (worker.scenario.get("scaler") or {}).get("name") == NAME]
    roles = tuple(worker.role for worker in own)
    mode = next((mode for mode, known in MODES.items() if sorted(known) == sorted(roles)), None)
    if mode is None or any(worker.scenario["scaler"] != own[0].scenario["scaler"] for worker in own):
        return None
    params = scalers.configured(own[0].scenario["scaler"])[1]
    throughput, load = next(switches for switches, loops in LOOPS.items() if loops == params.loops)
    config = {
        "environment": "kubernetes",
        "backend": own[0].command.engine,
        "mode": mode,
        "optimization_target": "sla",
        "enable_throughput_scaling": throughput,
        "enable_load_scaling": load,
        **{names[0]: _plain(getattr(params, key)) for key, names in KEYS.items()},
        "load_scaling_down_sensitivity": round(params.sensitivity * _PERCENT),
    }
    return ["-m", "dynamo.planner", "--config", json.dumps(config)]


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value == int(value) else value


def read_planner(container: Mapping[str, Any], reads: Sequence[Read]) -> list[str]:
    """Set the autoscaler of the pools that a planner's container scales; return the parts that are not understood."""
    words = [str(word) for word in container.get("args") or ()]
    text = words[words.index("--config") + 1] if "--config" in words[:-1] else "{}"
    try:
        config = json_value(text)
    except (UserError, ValueError):
        return ["planner: its configuration is in a file"]
    if not isinstance(config, Mapping) or config.get("optimization_target") != "sla":
        return ["planner: only the target sla is modeled"]
    given = {key: config[name] for key, names in KEYS.items() for name in reversed(names) if name in config}
    switches = (config.get("enable_throughput_scaling", True), config.get("enable_load_scaling", False))
    given["loops"] = LOOPS.get(switches, "throughput")
    given.setdefault("max_gpu_budget", 8)  # Dynamo's default, which is not the parameter's
    if "load_scaling_down_sensitivity" in config:
        given["sensitivity"] = config["load_scaling_down_sensitivity"] / _PERCENT
    scaler: Settings = {"name": NAME, **typed(scalers.resolve(NAME)[0].Params, given)}
    roles = MODES.get(str(config.get("mode", "disagg")), ())
    for read in reads:
        if read.role in roles:
            read.settings["scaler"] = dict(scaler)
    return []
