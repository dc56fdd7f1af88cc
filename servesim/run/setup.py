"""Conversion of a scenario into everything that a run needs, with every default filled in."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from pydantic import ValidationError

from servesim.contracts import Router, check_samples, make, routers
from servesim.contracts.feature import Feature
from servesim.contracts.part import Part
from servesim.contracts.scheduler import PREDICTED
from servesim.contracts.section import Section
from servesim.contracts.warn import Warn
from servesim.cost import TableCostModel
from servesim.engine.cluster import Cluster
from servesim.engine.core import EngineCore
from servesim.engine.pool import Pool
from servesim.errors import PolicyError, UserError, shown, suggest
from servesim.metrics.measured import Deployment
from servesim.plugins.misspelled import misspelled
from servesim.plugins.user_policies import adopt
from servesim.records.recorder import Recorder
from servesim.run.pool import PoolSetup, set_up_pool
from servesim.run.pools import FIELDS, PoolScenario, of_each, pool_scenarios, resolved_pools
from servesim.run.provenance import provenance
from servesim.run.scenario import Scenario, features_of, fleet_varies
from servesim.run.sections import extended
from servesim.run.server import Server, cost_model_of
from servesim.run.trace_source import open_scenario, open_stream
from servesim.workload.front_end import FrontEnd, FrontTerms
from servesim.workload.predictor import parse_predictor, predict
from servesim.workload.trace import Ints, Trace
from servesim.workload.trace_stream import TraceFacts, TraceStream
from servesim.workload.workload import Workload

__all__ = ["Setup", "cost_model_of", "set_up"]


@dataclass(frozen=True)
class Setup:
    """A fully resolved scenario, and the parts it names."""

    asked: Scenario
    """The scenario as given."""
    options: Any
    """Options of features (servesim.contracts.feature.Feature.Options), as attributes."""
    scenario: Scenario
    trace: Trace
    """Rows of the trace; for a streamed run, the first ones."""
    stream: TraceStream | None
    """All rows of the trace, if the run is streamed."""
    facts: TraceFacts
    predictor: str
    """Source of the output lengths that policies see: the scenario's choice if the scheduler declares that it uses
    them, else the cap that every engine has."""
    predicted: Ints
    """Output tokens as the predictor sees them, by row and then by additional sample."""
    pools: list[PoolSetup]
    router: Router
    notes: list[str]
    provenance: dict[str, Any]
    """Inputs of the results besides the scenario: hashes of trace, kernel tables and policy files."""
    parts: list[Part] = field(default_factory=list)
    """Parts of optional features, in order; each part serves only one cluster."""

    @property
    def engine_pools(self) -> list[Pool]:
        """The pools, in the form that a Cluster takes."""
        return [pool.pool for pool in self.pools]

    @property
    def several(self) -> bool:
        """Whether there are several replicas, or may be later, or there is a named pool."""
        several = self.scenario.replicas * self.scenario.dp > 1 or bool(self.scenario.pools)
        return several or fleet_varies(self.scenario)

    @property
    def cores(self) -> list[EngineCore]:
        """Cores of all initial replicas."""
        return [core for pool in self.pools for core in pool.cores]

    @property
    def cost(self) -> TableCostModel:
        """The cost model of the first pool."""
        return self.pools[0].cost

    @property
    def deployment(self) -> Deployment:
        """The deployment of the first pool."""
        return self.pools[0].deployment

    @property
    def front(self) -> FrontTerms:
        """The front end shared by all replicas, with the first pool's terms: the API processes of all replicas form one
        pool."""
        terms, engine = self.cost.terms, self.scenario.engine
        processes = sum(p.scenario.engine.api_server_count * p.scenario.replicas for p in self.pools)
        model = self.deployment.model.name
        if terms is None or not processes:
            return FrontTerms()
        return terms.front(model, processes, engine.stream_interval)

    @property
    def out_ns(self) -> int:
        """Time that a token takes from the engine to the client, in ns."""
        return self.front.out_ns

    def make_router(self) -> Router:
        """Return another router of the same kind."""
        cls, params = routers.configured(self.scenario.router)
        router: Router = make(cls, params, len(self.cores))
        router.seed, router.output_block = self.scenario.seed, self.scenario.engine.block_size
        return router

    def cluster(self, workload: Workload, recorder: Recorder, **options: Any) -> Cluster:
        """Return the replicas behind router and front end; `options`: additional options of Cluster."""
        return Cluster(
            FrontEnd(workload, self.front),
            self.engine_pools,
            self.router,
            mode=self.scenario.mode,
            recorder=recorder,
            parts=self.parts,
            **options,
        )


def set_up(scenario: Scenario, trace: Trace | None = None, options: Any = None) -> Setup:
    """Resolve a scenario; raise UserError if its parts do not fit together. A given `trace` is used unchanged, except
    for `skip`, `requests` and `rate`. `options`: see Setup."""
    whole, asked = scenario, pool_scenarios(scenario)
    servers = [Server.of(pool.scenario) for pool in asked]
    policies = [server.policies for server in servers]
    router_class, params = routers.configured(scenario.router)
    stream = open_stream(scenario, trace, policies[0].kv) if scenario.stream else None
    trace = next(stream.read()) if stream is not None else open_scenario(scenario, trace)
    sizes = [server.scenario.engine.block_size for server in servers]
    facts = {size: TraceFacts.of(stream or trace, size) for size in dict.fromkeys(sizes)}
    pools = [
        set_up_pool(server, name, role, facts[size])
        for server, (name, role, _), size in zip(servers, asked, sizes, strict=True)
    ]
    scenario = _resolved(scenario, pools, {"name": scenario.router["name"], **dataclasses.asdict(params)})
    check_together(scenario, pools, samples=facts[sizes[0]].samples)
    _check_models(pools, trace, facts[sizes[0]].samples)
    parse_predictor(scenario.predictor)
    tells = any(PREDICTED in each.scheduler.needs for each in policies)
    predictor = scenario.predictor if tells else "max_tokens"
    router: Router = make(router_class, params, sum(len(pool.cores) for pool in pools))
    router.seed, router.output_block = scenario.seed, scenario.engine.block_size
    setup = Setup(
        asked=whole,
        options=options if options is not None else options_of(scenario, {}),
        scenario=scenario,
        trace=trace,
        stream=stream,
        facts=facts[sizes[0]],
        predictor=predictor,
        predicted=predict(predictor, trace, scenario.seed),
        pools=pools,
        router=router,
        notes=[
            *of_each([pool.name for pool in pools], [pool.notes for pool in pools]),
        ],
        provenance=_provenance(scenario, pools, facts[sizes[0]]),
    )
    features = features_of(scenario)
    setup.parts.extend(part for feature in features if (part := built(feature, setup)) is not None)
    made = (router, *setup.parts, *features, *(each for core in setup.cores[:1] for each in (core.scheduler, core.kv)))
    setup.notes.extend(map(Warn, misspelled(type(each) for each in made)))
    return setup


def built(feature: Feature, setup: Setup) -> Part | None:
    """Return the part of a feature, checked against its contract, or None if the feature is off."""
    part = feature.build(setup)
    if part is not None:
        if Part not in type(part).__mro__:
            raise PolicyError(f"{feature.name}: build returns {shown(part)}, not a Part or None")
        adopt(type(part))
    return part


def options_of(scenario: Scenario, given: Mapping[str, Any]) -> Any:
    """Return the options of all features, both given and default; raise UserError for an invalid option."""
    try:
        return _options_class(tuple(feature.Options for feature in features_of(scenario)))(**given)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


@cache
def _options_class(parts: tuple[type[Section], ...]) -> Any:
    """Return a class with the options of some features."""
    return extended(Section, [("", part) for part in parts])


def _resolved(scenario: Scenario, pools: list[PoolSetup], router: dict[str, Any]) -> Scenario:
    if not scenario.pools:
        return pools[0].scenario.model_copy(update={"router": router})
    each = [PoolScenario(pool.name, pool.pool.role, pool.scenario) for pool in pools]
    shared = {k: v for one in features_of(scenario) for k, v in one.resolved(scenario).items() if k not in FIELDS}
    return scenario.model_copy(update=resolved_pools(each) | shared | {"router": router})


def check_together(scenario: Scenario, pools: list[PoolSetup], *, samples: bool, also: str = "") -> None:
    """Raise UserError for features of a run that exclude one another. `samples`: whether requests ask for several
    samples; `also`: a feature that is on, whatever the scenario says."""
    scenarios = [pool.scenario for pool in pools]
    on = [f for f in features_of(scenario) if f.name == also or f.is_on(scenario) or any(map(f.is_on, scenarios))]
    present = {feature.name for feature in on}
    present |= {"samples"} if samples else set()
    present |= {"stream"} if scenario.stream else set()
    present |= {"pp"} if any(each.pp > 1 for each in scenarios) else set()
    present |= {"speculation"} if any(each.speculation["name"] != "none" for each in scenarios) else set()
    for feature in on:
        for what, reason in feature.refuses(scenario).items():
            if what in present:
                raise UserError(reason)


def _check_models(pools: list[PoolSetup], trace: Trace, samples: bool) -> None:
    """Set the models that each pool serves; raise UserError if no pool serves a requested model, or if pools serve
    several samples of a request in different ways."""
    if samples:
        for pool in pools:
            check_samples(pool.cores[0].scheduler, pool.cores[0].kv)
        if len({pool.server.policies.scheduler.samples for pool in pools}) > 1:
            raise UserError("pools: requests ask for several samples (n > 1), which these schedulers serve differently")
    if len({pool.deployment.model.name for pool in pools}) == 1:
        return
    for pool in pools:
        pool.pool.models = pool.asked_as
    known = {name for pool in pools for name in pool.asked_as}
    for model in sorted({*trace.labels.get("model", ())} - {"", *known}):
        raise UserError(
            f"trace {trace.name}: a request asks for model {shown(model)}, which no pool serves{suggest(model, known)}"
        )
    asked = trace.labels.get("model", ())
    if nameless := (len(trace) - len(asked)) + sum(not model for model in asked):
        raise UserError(
            f"trace {trace.name}: {nameless:,} of {len(trace):,} requests do not specify a model, but pools serve "
            f"{' and '.join(sorted({pool.deployment.model.name for pool in pools}))}. Label every request with its "
            "model (a column of the trace); otherwise, the choice of the pool would be arbitrary."
        )


def _provenance(scenario: Scenario, pools: list[PoolSetup], facts: TraceFacts) -> dict[str, Any]:
    found = provenance(scenario, facts, pools[0].cost)
    if scenario.pools:
        each = {pool.name: provenance(pool.scenario, facts, pool.cost) for pool in pools}
        found["pools"] = {name: {k: v for k, v in one.items() if k != "trace"} for name, one in each.items()}
    return found
