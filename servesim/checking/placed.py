"""Worlds for subjects that are not part of a core: autoscalers, connectors, and features of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from servesim.checking.draw import Draws, draw, plain_world, refused_by
from servesim.checking.subject import Subject
from servesim.checking.world import World
from servesim.contracts.connector import DEFER
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
    if subject.kind != "feature":
        feature, cls = serving(subject.kind), subject.cls
        cls = checked(cls) if subject.kind == "connector" else cls
        served: World = feature.in_world_with(_suited(world, feature), draws, cls, subject.params)
        return served
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


def checked(cls: type[Any]) -> type[Any]:
    """Return a user's connector with its answers checked against the contract."""
    if not is_own(cls):
        return cls

    class Checked(cls):  # type: ignore[misc]
        name = cls.name

        def join(self, replica: Any) -> None:
            self.asked_tokens, self.clock = 0, replica.clock
            super().join(replica)

        def available(self, request: Request, num_tokens: int) -> Any:
            found, least = super().available(request, num_tokens), request.num_tokens - num_tokens
            if found != DEFER and not 0 <= found <= least:
                self._fail(f"available returns {found} of the {least} tokens after the first {num_tokens} of {request}")
            return found

        def load(self, request: Request, start: int, stop: int, now: int) -> Any:
            self.asked_tokens += stop - start
            end = super().load(request, start, stop, now)
            if end < now:
                self._fail(f"load ends at {end} ns, before it starts")
            return end

        def ran(self, requests: Iterable[Request], begin_ns: int, end_ns: int) -> Any:
            end = super().ran(requests, begin_ns, end_ns)
            if end < end_ns:
                self._fail(f"ran makes a step end at {end} ns, before {end_ns}")
            if self.counts.loaded_tokens != self.asked_tokens:
                told = f"{self.counts.loaded_tokens} of the {self.asked_tokens} tokens that it has loaded are counted"
                self._fail(f"{told} (call self.counts.loaded(request, tokens, tier) for each load)")
            return end

        def _fail(self, told: str) -> None:
            raise PolicyError(f"{cls.__name__} at {self.clock.ns} ns: {told}")

    for name in ("__module__", "__name__", "__qualname__"):
        setattr(Checked, name, getattr(cls, name))
    return Checked
