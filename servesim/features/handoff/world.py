"""Disaggregated prefill and decode in a small world."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from servesim.contracts import build_params, kv_allocators, make, schedulers
from servesim.contracts.decider import deciders
from servesim.features.handoff.links import Links
from servesim.features.handoff.setup import can_receive
from servesim.features.handoff.straight import Straight
from servesim.features.handoff.vllm import VllmNixl, VllmNixlParams

DECIDERS = ("always", "llm-d:non_cached_tokens=40", "dynamo-0:max_local_prefill_length=30,max_prefill_queue_size=1")


def with_handoff(world: Any, draws: Any) -> Any:
    """Return the world with its replicas split into two pools, if its policies can wait for KV. There is memory for all
    requests, because requests could otherwise hold memory and wait for each other forever."""
    if not can_receive(schedulers.resolve(world.scheduler)[0], kv_allocators.resolve(world.kv)[0]):
        return world
    prefill, decode = draws.one("replicas apart", [(1, 1), (2, 1), (1, 2)])
    rate, start_ns = draws.one("link", [1_000_000, 30_000_000, 1_000_000_000]), draws.one("link start", [0, 700])
    params = VllmNixlParams(
        http_ms=draws.one("proxy", [0.0, 0.004]),
        lease_s=draws.one("lease", [5e-6, 30.0]),
        lease_renewed=draws.one("lease renewed", [True, False]),
        kv_load_failure_policy=draws.one("load failure", ["fail", "recompute"]),
    )

    decider = draws.one("decider", ["", "", *DECIDERS])

    def handoff(world: Any, pools: Any) -> VllmNixl:
        links = [rate] * world.replicas
        made = VllmNixl(
            Links(links, links, start_ns, rate_of=lambda pool: rate),
            lambda request, start, stop: stop - start,
            world.make_router(),
            params,
        )
        if decider:
            cls, values = deciders.resolve(decider)
            made.straight = Straight(make(cls, build_params(decider, cls.Params, dict(values))))
        return made

    world = world.roomy().divided(("prefill", prefill, "prefill"), ("decode", decode, "decode"))
    return replace(world, features=(*world.features, handoff))
