"""Worlds whose replicas come and go, by autoscalers that are told what to say and by those that are shipped."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st

from servesim.contracts.scaler import PoolLoad, Scaler
from servesim.engine.cluster import Cluster
from servesim.features.handoff.vllm import VllmNixlParams
from servesim.features.scaling.part import Scaled, Scaling
from tests.support.apart import Apart, apart_worlds
from tests.support.pooled import Pooled, pooled_worlds

EVERY_NS = 7_000


class Told(Scaler):
    """Answers what it is told, one answer after the other, then the last; one at least while requests wait, so that it
    does not take back for good what starts for them. Keeps what it saw."""

    def __init__(self, answers: list[int]) -> None:
        super().__init__(None, None)  # type: ignore[arg-type]
        self.answers = list(answers)
        self.saw: list[PoolLoad] = []

    @property
    def every_s(self) -> float:
        return EVERY_NS / 1e9

    def wanted(self, load: PoolLoad) -> int:
        self.saw.append(load)
        wanted = self.answers[min(len(self.saw), len(self.answers)) - 1]
        return max(wanted, 1) if load.num_held else wanted


@dataclass
class ScaledWorld(Pooled):
    """Two pools whose replicas come and go."""

    answers: tuple[list[int], list[int]] = ((), ())  # type: ignore[assignment]
    start_ns: int = 10_000
    scalers: list[Told] = field(default_factory=list)

    def cluster(self, mode: str = "fast", check: bool = False) -> Cluster:
        cluster = super().cluster(mode, check)
        self.scalers = [Told(answers) for answers in self.answers]
        scaled = [
            Scaled(pool, scaler, self.start_ns, 0, 5)
            for pool, scaler in zip(cluster.fleet.pools, self.scalers, strict=True)
        ]
        cluster.add(Scaling(scaled))
        return cluster


@dataclass
class ScaledApart(Apart):
    """Prompts and answers on different replicas, both of which come and go."""

    answers: tuple[list[int], list[int]] = ((), ())  # type: ignore[assignment]
    ready_ns: int = 10_000

    def __post_init__(self) -> None:
        """Let leases end soon: to wait for the end of 30 s takes millions of questions."""
        if isinstance(self.protocol, VllmNixlParams):
            self.protocol = replace(self.protocol, lease_s=min(self.protocol.lease_s, 0.002))

    def cluster(self, mode: str = "fast", check: bool = False) -> Cluster:
        cluster = super().cluster(mode, check)
        cluster.add(
            Scaling(
                [
                    Scaled(pool, Told(answers), self.ready_ns, 0, 5)
                    for pool, answers in zip(cluster.fleet.pools, self.answers, strict=True)
                ]
            )
        )
        return cluster


@st.composite
def scaled_apart_worlds(draw: st.DrawFn) -> ScaledApart:
    world = draw(apart_worlds())
    fields: dict[str, Any] = {name: getattr(world, name) for name in world.__dict__}
    answers = [draw(st.lists(st.integers(0, 4), min_size=1, max_size=12)) for _ in range(2)]
    ready_ns = draw(st.sampled_from([0, 900, 30_000]))
    return ScaledApart(**fields, answers=(answers[0], answers[1]), ready_ns=ready_ns)


@st.composite
def scaled_worlds(draw: st.DrawFn, samples: bool = False) -> ScaledWorld:
    """`samples`: see `worlds`."""
    world = draw(pooled_worlds(samples))
    fields: dict[str, Any] = {name: getattr(world, name) for name in world.__dict__}
    answers = [draw(st.lists(st.integers(0, 4), min_size=1, max_size=12)) for _ in range(2)]
    start_ns = draw(st.sampled_from([0, 900, 30_000]))
    return ScaledWorld(**fields, answers=(answers[0], answers[1]), start_ns=start_ns)
