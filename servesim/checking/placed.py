"""Worlds for subjects that are not part of a core: autoscalers, connectors, and features of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from servesim.checking.draw import Draws, draw, plain_world, refused_by
from servesim.checking.subject import Subject
from servesim.checking.world import World
from servesim.contracts import make
from servesim.contracts.connector import DEFER, Connector
from servesim.contracts.feature import Feature, installed
from servesim.contracts.part import Part
from servesim.contracts.request import Request
from servesim.engine.pool import Pool
from servesim.errors import PolicyError, UserError
from servesim.plugins.user_policies import is_own
from servesim.run.scenario import Scenario
from servesim.run.setup import built, options_of
from servesim.workload.trace_stream import TraceFacts

ANY = ("vllm", "sglang", "least-outstanding", "prefix-hash")
"""Policies around which worlds for the subject are drawn: each world fixes one, and its other policies vary."""
ABOUT = {"scaler": ANY, "feature": ANY, "connector": ("vllm",)}
ASKED = {"takes": False, "reaches": True, "gives_up": False}
"""Methods of a part that return an answer, with their default answers."""
Maker = Callable[[World, list[Pool]], Part | None]


def world_of(number: int, subject: Subject) -> World:
    """Return world `number` with the subject in it, whatever its kind."""
    if subject.kind not in ABOUT:
        return draw(number, subject)
    draws, about = Draws(number), ABOUT[subject.kind]
    world = plain_world(number, Subject.of(about[number % len(about)]))
    if subject.kind == "connector":
        return replace(world, features=(partial(_connected, subject.cls),))
    if subject.kind == "scaler":
        feature = serving(subject.kind)
        scaled: World = feature.in_world_with(_suited(world, feature), draws, subject.cls, subject.params)
        return scaled
    feature = subject.cls()
    world = _suited(world, feature)
    if type(feature).in_world is not Feature.in_world:
        found: World = feature.in_world(world, draws)
        return replace(found, features=tuple(map(Watched, found.features)))
    return replace(world, features=(Watched(partial(_built, subject)),))


def serving(kind: str) -> Feature:
    """Return the feature whose runs have policies of a kind. Raise UserError if none is installed."""
    for feature in installed():
        if kind in feature.serves:
            return feature
    raise UserError(f"no installed feature uses a {kind}")


def _suited(world: World, feature: Feature) -> World:
    """Return the world without the settings that a feature refuses."""
    refused = {*refused_by(feature)}
    if "samples" in refused:
        world = replace(world, trace=replace(world.trace, samples=None))
    if "speculation" in refused:
        world = replace(world, speculation="")
    return replace(world, depth=1) if "pp" in refused and not world.asynchronous else world


class Watched:
    """Maker of a part that records its non-default answers across all runs."""

    def __init__(self, maker: Maker) -> None:
        self._maker = maker
        self.made = False
        self.answered: set[str] = set()

    def __call__(self, world: World, pools: list[Pool]) -> Part | None:
        """Make the part."""
        part = self._maker(world, pools)
        if part is not None:
            self.made = True
            for verb, usual in ASKED.items() if is_own(type(part)) else ():
                if part.wants(verb):
                    setattr(part, verb, partial(self._ask, verb, getattr(part, verb), usual))
        return part

    def _ask(self, verb: str, asked: Callable[..., bool], usual: bool, *args: Any) -> bool:
        answer = asked(*args)
        if answer != usual:
            self.answered.add(verb)
        return answer


@dataclass(frozen=True)
class SmallPool:
    """A pool of a small world, as a feature sees it when it builds its part."""

    scenario: Scenario
    pool: Pool
    cost: Any
    name: str = "default"


@dataclass(frozen=True)
class SmallSetup:
    """The part of servesim.run.setup.Setup that a feature sees when it builds its part of a small world."""

    scenario: Scenario
    asked: Scenario
    options: Any
    trace: Any
    facts: TraceFacts
    pools: list[SmallPool]
    stream: None = None
    notes: list[str] = field(default_factory=list)

    @property
    def cores(self) -> list[Any]:
        """Cores of all initial replicas."""
        return [core for pool in self.pools for core in pool.pool.cores]

    def __getattr__(self, name: str) -> Any:
        raise UserError(f"no test world has setup.{name}: define in_world(world, draws)")


def _built(subject: Subject, world: World, pools: list[Pool]) -> Part | None:
    scenario = subject.scenario(replicas=world.replicas)
    small = [SmallPool(scenario, pool, world.cost) for pool in pools]
    facts = TraceFacts.of(world.trace, world.block_size)
    setup: Any = SmallSetup(scenario, scenario, options_of(scenario, {}), world.trace, facts, small)
    return built(subject.cls(), setup)


class Connecting(Part):
    """Part that connects each core to its own connector."""

    def __init__(self, cls: type[Connector]) -> None:
        self._cls = cls

    def core_made(self, replica: Any) -> None:
        try:
            connector: Connector = make(self._cls)
        except PolicyError as error:
            if "__init__() missing" in f"{error}":
                told = f"{self._cls.__name__}() needs arguments: check a subclass that needs none"
                raise UserError(told) from None
            raise
        replica.connect(checked(connector, self._cls, lambda: replica.clock.ns))
        replica.core.step_plainly()


def _connected(cls: type[Connector], world: World, pools: list[Pool]) -> Part:
    return Connecting(cls)


def checked(connector: Any, cls: type[Connector], now: Callable[[], int]) -> Connector:
    """Return a user's connector with its answers checked against the contract."""
    if not is_own(cls):
        return connector  # type: ignore[no-any-return]
    available, load, ran = connector.available, connector.load, connector.ran

    def asked(request: Request, num_tokens: int) -> int:
        found: int = available(request, num_tokens)
        if found != DEFER and not 0 <= found <= request.num_tokens - num_tokens:
            told = (
                f"available returns {found} of the {request.num_tokens - num_tokens} tokens after the first "
                f"{num_tokens}"
            )
            raise PolicyError(f"{cls.__name__} at {now()} ns: {told} of {request}")
        return found

    def loaded(request: Request, start: int, stop: int, at: int) -> int:
        end: int = load(request, start, stop, at)
        if end < at:
            raise PolicyError(f"{cls.__name__} at {now()} ns: load ends at {end} ns, before it starts")
        return end

    def ends(requests: Any, begin_ns: int, end_ns: int) -> int:
        end: int = ran(requests, begin_ns, end_ns)
        if end < end_ns:
            raise PolicyError(f"{cls.__name__} at {now()} ns: ran makes a step end at {end} ns, before {end_ns}")
        return end

    connector.available, connector.load, connector.ran = asked, loaded, ends
    return connector  # type: ignore[no-any-return]
