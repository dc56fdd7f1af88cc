"""Worlds of several pools: the second is slower and has less memory, and each may serve a model of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from dataclasses import fields as dataclass_fields
from typing import Any

from hypothesis import strategies as st

from servesim.cost.slowed import Slowed
from servesim.engine.pool import Pool
from servesim.workload.trace import Trace
from tests.support.strategies import ALL_AT_ONCE, worlds
from tests.support.worlds import World

MODELS = ("a", "b")


@dataclass
class Pooled(World):
    """Two pools of replicas."""

    models: bool = False
    """Whether each pool serves a model of its own, which requests ask for."""
    sizes: tuple[int, int] = (1, 1)

    def pools(self, mode: str, check: bool) -> list[Pool]:
        small = replace(self, num_blocks=max(self.num_blocks // 2, 2))
        made: list[Pool] = []
        for world, cost, count, model in zip(
            (self, small), (self.cost, Slowed(self.cost, 2.5)), self.sizes, MODELS, strict=True
        ):
            spawn = lambda world=world: world.core(check, mode)  # noqa: E731
            cores = [spawn() for _ in range(count)]
            made.append(Pool(cores, cost, self.depth, spawn, model, models=(model,) if self.models else ()))
        return made


def labelled(trace: Trace, models: list[str]) -> Trace:
    """The trace with a model that each request asks for."""
    return replace(trace, labels={**trace.labels, "model": tuple(models)})


@st.composite
def pooled_worlds(draw: st.DrawFn, samples: bool = False) -> Pooled:
    """`samples`: see `worlds`."""
    world = draw(worlds(samples=samples))
    fields: dict[str, Any] = {name: getattr(world, name) for name in (field.name for field in dataclass_fields(world))}
    sizes = draw(st.sampled_from([(1, 1), (2, 1), (1, 3)]))
    models = draw(st.booleans())
    n = len(world.trace)
    asked = draw(st.lists(st.sampled_from(["", *MODELS]), min_size=n, max_size=n))
    if world.speculation or world.scheduler_params.get("num_lookahead_tokens"):
        # slots for drafts end where memory does, in the smaller pool too
        most = (max(world.num_blocks // 2, 2) - 1) // len(world.windows) * world.block_size
        fields["max_model_len"] = min(world.max_model_len, most)
    if world.kv in ALL_AT_ONCE:
        room = max(world.num_blocks // 2, 2) * world.block_size
        fields["max_model_len"] = min(fields["max_model_len"], 1 << (room.bit_length() - 1))
    fields |= {"replicas": sum(sizes), "sizes": sizes, "models": models, "trace": labelled(world.trace, asked)}
    return Pooled(**fields)
