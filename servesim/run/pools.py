"""Pools of a scenario: each is the scenario with some settings overridden."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from servesim.contracts.feature import installed
from servesim.errors import UserError, shown, suggest
from servesim.hardware import Gpu
from servesim.parsing import pairs
from servesim.run.part_names import with_parts
from servesim.run.prices import price_of, reserved_of

if TYPE_CHECKING:
    from pydantic import BaseModel

    from servesim.contracts.router import Role
    from servesim.run.scenario import Scenario

OF_FEATURES = {
    key: feature.Settings.model_fields[key].get_default(call_default_factory=True)
    for feature in installed()
    for key in feature.of_pool
}
"""Settings of features that pools may override, with their defaults."""
FIELDS = (
    "model", "gpu", "dtype", "kv_dtype", "tp", "dp", "ep", "pp", "replicas", "preset", "scheduler", "kv", "speculation",
    "acceptance", "engine", "host", "kernel_tables", "usd_per_gpu_hour", "price",
    *OF_FEATURES,
)  # fmt: skip
"""Settings that pools may override."""
ROLES: tuple[Role, ...] = ("both", "prefill", "decode")
ONLY = "default"
"""Name of the pool of a scenario without pools."""
MOST_NAME = 100
"""Maximum length of a pool's name, which tables and notes repeat."""
Settings = dict[str, Any]


class PoolScenario(NamedTuple):
    """One pool of a scenario, as a scenario of its own."""

    name: str
    role: Role
    scenario: Scenario


def with_pools(
    settings: Mapping[str, Any], complete: Callable[[Settings], Scenario], kind: type[BaseModel]
) -> Settings:
    """Return settings whose pools are complete, and whose other values are those of the first pool. `complete` makes a
    scenario, of class `kind`, from settings without pools. Raise UserError for an invalid pool."""
    given, base = settings["pools"], {key: value for key, value in settings.items() if key != "pools"}
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise UserError(f"pools is {shown(given)} but must be a list of mappings, each with a name")
    pools: list[Settings] = []
    for pool in map(_mapping, given):
        name, role = str(pool.pop("name", "")), pool.pop("role", "both")
        if not name or any(name == other["name"] for other in pools):
            raise UserError(f"pools: {shown(name) + ' is specified twice' if name else 'a pool has no name'}")
        if role not in ROLES:
            raise UserError(f"pools: role of {name} is {shown(role)} but must be {', '.join(ROLES)}")
        try:
            whole = complete(_changed(base, pool, kind)).model_dump()
        except UserError as error:
            raise UserError(f"pools: {name}: {error}") from None
        pools.append({"name": name, "role": role, **{key: whole[key] for key in FIELDS if key in whole}})
    pools = _spelt_out(pools)
    first = {key: pools[0][key] for key in FIELDS if key in pools[0]}
    base = {key: value for key, value in base.items() if key not in OF_FEATURES}
    return base | first | {"replicas": sum(pool["replicas"] for pool in pools), "pools": pools}


def pool_scenarios(scenario: Scenario) -> list[PoolScenario]:
    """Return the scenario of each pool, or the scenario itself if there are no pools."""
    if not scenario.pools:
        return _priced([PoolScenario(ONLY, "both", scenario)])
    base = scenario.model_dump(exclude={"pools", "router"})  # all pools share one router
    found = [
        PoolScenario(
            pool["name"],
            pool["role"],
            type(scenario).model_validate(base | {key: pool[key] for key in FIELDS if key in pool}),
        )
        for pool in scenario.pools
    ]
    return _priced(found)


def _priced(pools: list[PoolScenario]) -> list[PoolScenario]:
    """Return pools with the mean price of the GPUs of each kind, which share those that are reserved."""
    if not any(reserved_of(price) for pool in pools for price in pool.scenario.price.values()):
        return pools
    gpus: dict[str, int] = {}
    for _, _, one in pools:
        gpus[one.gpu] = gpus.get(one.gpu, 0) + one.tp * one.pp * one.dp * one.replicas
    found = []
    for name, role, one in pools:
        usd = price_of(Gpu.load(one.gpu), one.price, one.usd_per_gpu_hour, gpus[one.gpu])
        found.append(PoolScenario(name, role, one.model_copy(update={"usd_per_gpu_hour": usd})))
    return found


def resolved_pools(pools: Sequence[PoolScenario]) -> Settings:
    """Return the settings of a scenario that change when its pools are resolved: the pools, and the settings of the
    first."""
    dumped = _spelt_out([scenario.model_dump(include={*FIELDS}) for _, _, scenario in pools])
    first = {key: getattr(pools[0].scenario, key) for key in FIELDS}
    named = [{"name": pool.name, "role": pool.role, **fields} for pool, fields in zip(pools, dumped, strict=True)]
    return first | {"replicas": sum(pool.scenario.replicas for pool in pools), "pools": named}


def _spelt_out(pools: Sequence[Settings]) -> list[Settings]:
    """Return the settings of pools, of which those without a feature say so if others have it; otherwise they would be
    taken to have that of the first pool."""
    there = {key: default for key, default in OF_FEATURES.items() if any(pool.get(key) for pool in pools)}
    return [there | pool for pool in pools]


def _mapping(pool: Any) -> Settings:
    """Return a pool, written as a mapping or as `name:key=value,...`, as a mapping."""
    if isinstance(pool, Mapping):
        found = dict(pool)
    elif isinstance(pool, str):
        name, _, rest = pool.partition(":")
        found = {"name": name, **pairs(f"pools: {name}", rest)}
    else:
        raise UserError(f"pools: {shown(pool)} must be a mapping with a name, or name:key=value,...")
    name = str(found.get("name", ""))
    if len(name) > MOST_NAME or not name.isprintable():
        raise UserError(
            f"pools: {shown(name)} is not a valid name: it must have at most {MOST_NAME} characters, all printable"
        )
    known = {"name", "role", *FIELDS}
    for key in found:
        if str(key).partition(".")[0] not in known:
            raise UserError(
                f"pools: {found.get('name', 'a pool')}: unknown key {shown(str(key))}{suggest(str(key), known)}"
            )
    return found


def _changed(base: Mapping[str, Any], pool: Settings, kind: type[BaseModel]) -> Settings:
    """Return the scenario's settings overridden by a pool's; settings of the engine are merged one by one."""
    own = dict(pool)
    engine = own.pop("engine", None)
    parts = {f"engine.{key}": value for key, value in engine.items()} if isinstance(engine, Mapping) else {}
    if engine is not None and not isinstance(engine, Mapping):
        parts = {"engine": engine}
    return with_parts(base, {**own, **parts}, kind)


def of_each(names: Sequence[str], notes: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the notes of all pools: common notes once, the rest with the name of their pool."""
    told: set[str] = set()
    for name, lines in zip(names, notes, strict=True):
        for line in lines:
            common = all(line in other for other in notes)
            if line not in told or not common:
                yield line if common else type(line)(f"{name}: {line}")
            told.add(line)
