"""Replicas that are added to a run: like those of a pool, or of the same deployment on another GPU or of another
model. The nodes that they and all others are on."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from servesim.errors import UserError, shown, suggest
from servesim.features.failures.nodes import Nodes, Stay, number_of, placed
from servesim.features.failures.setup import Counts, Kind, KindOf, ns_of
from servesim.hardware import model_named
from servesim.run.pool import PoolSetup, set_up_pool
from servesim.run.pools import pool_scenarios
from servesim.run.provenance import provenance
from servesim.run.scenario import fleet_varies
from servesim.run.server import Server
from servesim.run.start import start_of

if TYPE_CHECKING:
    from servesim.engine.pool import Pool
    from servesim.run.setup import Setup


def nodes_of(setup: Setup, size: int) -> Nodes:
    """Return the nodes of a run, with `size` GPUs each."""

    def gpus_of(pool: Pool) -> int:
        scenario = next(each.scenario for each in setup.pools if each.pool is pool)
        return int(scenario.tp * scenario.pp)

    return Nodes(size, gpus_of)


def counts_of(setup: Setup, nodes: Nodes) -> Counts | None:
    """Return the number of replicas and nodes of a run, or None if they come and go."""
    if fleet_varies(setup.scenario):
        return None
    stays = [Stay(nodes.gpus_of(pool.pool)) for pool in setup.pools for _ in pool.cores]
    return Counts(len(stays), number_of(placed(nodes.size, stays)))


def kinds_of(setup: Setup) -> KindOf:
    """Return the function that finds or makes the pool of an added replica. Pools that it makes are appended to those
    of the run, without replicas. It raises UserError for what cannot be added."""
    return partial(_kind, setup, len(setup.scenario.pools) or 1)


def _kind(setup: Setup, own: int, kind: str, name: str, gpu: str, model: str) -> Kind:
    """`own`: number of pools of the scenario, which come before those that were made here."""
    try:
        return _found(setup, own, kind, name, gpu, model)
    except UserError as error:
        raise UserError(f"cluster.failures: {kind}: {error}") from None


def _found(setup: Setup, own: int, kind: str, name: str, gpu: str, model: str) -> Kind:
    names = [pool.name for pool in setup.pools[:own]]
    if not name and own > 1:
        raise UserError(f"pool is missing; it must be {' or '.join(names)}")
    if name and name not in names:
        raise UserError(f"unknown pool {shown(name)}{suggest(name, names)}")
    number = names.index(name) if name else 0
    if gpu or model:
        if kind == "upgrade" and getattr(setup.pools[number].scenario, "scaler", None) is not None:
            raise UserError("an autoscaler counts the replicas of one deployment, and another GPU or model is another")
        number = _made(setup, number, gpu, model)
    pool = setup.pools[number]
    start = start_of(getattr(pool.scenario, "start", {}))
    return Kind(number, ns_of(start.total_s(pool.deployment.model.weight_bytes(pool.deployment.dtype))))


def _made(setup: Setup, number: int, gpu: str, model: str) -> int:
    """Return the number of the pool that is like another one, on another GPU or of another model."""
    base = setup.pools[number]
    if model and base.pool.role != "both":
        raise UserError("prefill and decode replicas must have the same model")
    changes = {key: value for key, value in (("gpu", gpu), ("model", model)) if value}
    name = " ".join([base.name, *(f"{key}={value}" for key, value in changes.items())])
    for at, pool in enumerate(setup.pools):
        if pool.name == name:
            return at
    pool = _pool(setup, base, name, pool_scenarios(setup.asked)[number].scenario, changes)
    setup.pools.append(pool)
    setup.notes.extend(type(note)(f"{name}: {note}") for note in pool.notes if note not in setup.notes)
    known = setup.provenance.setdefault("pools", {})
    known[name] = {k: v for k, v in provenance(pool.scenario, setup.facts, pool.cost).items() if k != "trace"}
    return len(setup.pools) - 1


def _pool(setup: Setup, base: PoolSetup, name: str, asked: Any, changes: dict[str, str]) -> PoolSetup:
    """Set up a pool without replicas: its own KV memory, the limits of requests of its base, which serves the same
    clients."""
    engine = asked.engine.model_copy(
        update={"num_gpu_blocks": None, "max_model_len": base.scenario.engine.max_model_len}
    )
    named = model_named(changes["model"]) if "model" in changes else None
    if named is not None and named.dtype not in (None, asked.dtype):
        raise UserError(f"the weights of {changes['model']} are {named.dtype}, but those of the endpoint {asked.dtype}")
    checked = type(asked).model_validate({**asked.model_dump(), **changes})  # names of GPUs and models are normalized
    changed = {key: getattr(checked, key) for key in changes}
    scenario = asked.model_copy(update={**changed, "engine": engine, "replicas": 0})
    pool = set_up_pool(Server.of(scenario), name, base.pool.role, setup.facts)
    pool.pool.models = base.pool.models
    return pool
