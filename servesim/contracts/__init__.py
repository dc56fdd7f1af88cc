"""Contracts for policy authors, and the registries that find policies by name.

Names are imported from their modules on first use, since help and settings need none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from servesim.contracts.acceptance import AcceptanceModel, acceptance_models
    from servesim.contracts.cost import Batch, CostModel, Host, Price
    from servesim.contracts.kv import MISS, Hit, KVAllocator, KVMemory, Usage, kv_allocators
    from servesim.contracts.params import NoParams, SchedulerParams
    from servesim.contracts.plan import Plan, PlanContext
    from servesim.contracts.request import Request, State
    from servesim.contracts.router import (
        WAIT,
        Decision,
        Pair,
        Reject,
        ReplicaView,
        Report,
        Router,
        Wait,
        ready,
        routers,
    )
    from servesim.contracts.scaler import Scaler, scalers
    from servesim.contracts.scheduler import Defaults, Limits, Scheduler, check_samples, schedulers
    from servesim.contracts.speculator import Speculator, SpeculatorParams, speculators
    from servesim.contracts.warn import Warn
    from servesim.plugins.registry import Registry, build_params
    from servesim.plugins.user_policies import make

    REGISTRIES: tuple[Registry[Any], ...]

KINDS = ("schedulers", "kv_allocators", "routers", "speculators", "acceptance_models", "scalers")
_MODULES = {
    "servesim.contracts.acceptance": "AcceptanceModel acceptance_models",
    "servesim.contracts.cost": "Batch CostModel Host Price",
    "servesim.contracts.kv": "MISS Hit KVAllocator KVMemory Usage kv_allocators",
    "servesim.contracts.params": "NoParams SchedulerParams",
    "servesim.contracts.plan": "Plan PlanContext",
    "servesim.contracts.request": "Request State",
    "servesim.contracts.router": "WAIT Decision Pair Reject ReplicaView Report Router Wait ready routers",
    "servesim.contracts.scaler": "Scaler scalers",
    "servesim.contracts.scheduler": "Defaults Limits Scheduler check_samples schedulers",
    "servesim.contracts.speculator": "Speculator SpeculatorParams speculators",
    "servesim.contracts.warn": "Warn",
    "servesim.plugins.registry": "Registry build_params",
    "servesim.plugins.user_policies": "make",
}
"""Names by the module that defines them."""
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [
    "MISS",
    "REGISTRIES",
    "WAIT",
    "AcceptanceModel",
    "Batch",
    "CostModel",
    "Decision",
    "Defaults",
    "Hit",
    "Host",
    "KVAllocator",
    "KVMemory",
    "Limits",
    "NoParams",
    "Pair",
    "Plan",
    "PlanContext",
    "Price",
    "Registry",
    "Reject",
    "ReplicaView",
    "Report",
    "Request",
    "Router",
    "Scaler",
    "Scheduler",
    "SchedulerParams",
    "Speculator",
    "SpeculatorParams",
    "State",
    "Usage",
    "Wait",
    "Warn",
    "acceptance_models",
    "build_params",
    "check_samples",
    "kv_allocators",
    "make",
    "ready",
    "routers",
    "scalers",
    "schedulers",
    "speculators",
]


def __getattr__(name: str) -> Any:
    if name == "REGISTRIES":  # all registries, one for each kind
        found: Any = tuple(__getattr__(kind) for kind in KINDS)
    elif name in _MODULE_OF:
        found = getattr(import_module(_MODULE_OF[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found
