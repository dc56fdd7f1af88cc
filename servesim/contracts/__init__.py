"""Contracts for policy authors, and the registries that find policies by name."""

from typing import Any

from servesim.contracts.acceptance import AcceptanceModel, acceptance_models
from servesim.contracts.cost import Batch, CostModel, Host, Price
from servesim.contracts.kv import MISS, Hit, KVAllocator, KVMemory, Usage, kv_allocators
from servesim.contracts.params import NoParams, SchedulerParams
from servesim.contracts.plan import Plan, PlanContext
from servesim.contracts.request import Request, State
from servesim.contracts.router import WAIT, Decision, Pair, Reject, ReplicaView, Report, Router, Wait, ready, routers
from servesim.contracts.scaler import Scaler, scalers
from servesim.contracts.scheduler import Defaults, Limits, Scheduler, check_samples, schedulers
from servesim.contracts.speculator import Speculator, SpeculatorParams, speculators
from servesim.plugins.registry import Registry, build_params
from servesim.plugins.user_policies import make

REGISTRIES: tuple[Registry[Any], ...] = (schedulers, kv_allocators, routers, speculators, acceptance_models, scalers)
"""Everything that can be plugged in, by kind."""

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
