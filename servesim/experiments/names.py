"""Checks that find unknown names before anything runs.

A value that conflicts with the other settings of its cell fails only that cell; a value that is wrong in every cell
fails the whole question.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from servesim.contracts import REGISTRIES, kv_allocators
from servesim.cost import KernelTables
from servesim.cost.build import IDEAL, ROOFLINE_ONLY
from servesim.cost.host import HostTerms
from servesim.errors import UserError
from servesim.experiments.axes import Variant
from servesim.hardware import Gpu, ModelSpec
from servesim.run.scenario import Scenario
from servesim.run.trace_source import open_scenario, open_stream
from servesim.workload.predictor import parse_predictor
from servesim.workload.trace import Trace

Check = Callable[[Scenario], Any]


def check_names(variants: Sequence[Variant], objects: Mapping[str, Trace]) -> None:
    """Raise UserError if a setting's value is wrong in every variant that has it: no scenario accepts it, or its name
    is unknown. `objects` holds the traces that are not files, by name."""
    scenarios = [Scenario.of(v.settings) for v in variants]
    for key, check in _checks(objects).items():
        known: dict[str, UserError | None] = {}
        for scenario in scenarios:
            value = json.dumps(scenario.model_dump(include={key}))
            if known.get(value, True) is not None:  # not checked yet, or wrong so far
                try:
                    check(scenario)
                    known[value] = None
                except UserError as error:
                    known.setdefault(value, error)
        if wrong := [error for error in known.values() if error is not None]:
            raise wrong[0]


def _checks(objects: Mapping[str, Trace]) -> dict[str, Check]:
    """Return the function that looks up each setting's value, by setting."""
    return {
        "model": lambda s: ModelSpec.load(s.model),
        "gpu": lambda s: Gpu.load(s.gpu),
        "predictor": lambda s: parse_predictor(s.predictor),
        "host": lambda s: None if s.host in ("auto", "none") else HostTerms.load(s.host),
        "kernel_tables": lambda s: (
            None if s.kernel_tables in (None, ROOFLINE_ONLY, IDEAL) else KernelTables.load(folder=s.kernel_tables)
        ),
        **{registry.kind: partial(_configure, registry) for registry in REGISTRIES},
        "trace": lambda s: _open(s, objects.get(s.trace)),
    }


def _open(scenario: Scenario, trace: Trace | None) -> None:
    if scenario.stream:  # too long to read twice
        allocator, _ = kv_allocators.resolve(scenario.kv["name"])
        open_stream(scenario, trace, allocator)
    else:
        open_scenario(scenario, trace)


def _configure(registry: Any, scenario: Scenario) -> None:
    policy = getattr(scenario, registry.kind, None)  # a feature's kind may not be installed
    if policy is None or (registry.kind == "speculation" and policy["name"] == "none"):
        return
    cls, params = registry.configured(policy)
    if registry.kind == "acceptance":  # reads its file
        cls(params, scenario.seed)
