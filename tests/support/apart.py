"""Worlds whose prompts and answers are computed by different replicas, which a protocol ties together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from dataclasses import fields as dataclass_fields
from typing import Any

from hypothesis import strategies as st

from servesim.contracts import build_params, make, routers
from servesim.contracts.decider import deciders
from servesim.engine.cluster import Cluster
from servesim.engine.pool import Pool
from servesim.features.handoff.first import Sglang, SglangParams, Trtllm, TrtllmParams
from servesim.features.handoff.links import Links
from servesim.features.handoff.part import Handoff
from servesim.features.handoff.straight import Straight
from servesim.features.handoff.vllm import VllmNixl, VllmNixlParams
from servesim.workload.workload import Clients
from tests.support.strategies import worlds
from tests.support.worlds import World

Protocol = VllmNixlParams | SglangParams | TrtllmParams
PROTOCOLS: dict[type[Any], type[Any]] = {VllmNixlParams: VllmNixl, SglangParams: Sglang, TrtllmParams: Trtllm}


@dataclass
class Apart(World):
    """A pool of prompts and a pool of answers; a token of KV is one byte."""

    sizes: tuple[int, int] = (1, 1)
    decode_blocks: int = 30
    bytes_per_s: int = 1_000_000_000
    start_ns: int = 0
    protocol: Protocol = VllmNixlParams()  # noqa: RUF009
    decider: str = ""
    """Which prompts are computed apart; empty: all."""

    def pools(self, mode: str, check: bool) -> list[Pool]:
        made = []
        for name, world, count in zip(
            ("prefill", "decode"), (self, replace(self, num_blocks=self.decode_blocks)), self.sizes, strict=True
        ):
            spawn = lambda world=world: world.core(check, mode)  # noqa: E731
            cores = [spawn() for _ in range(count)]
            made.append(Pool(cores, self.cost, self.depth, spawn, name, name))  # type: ignore[arg-type]
        return made

    def handoff(self) -> Handoff:
        cls, _ = routers.resolve(self.router)
        links = [self.bytes_per_s] * sum(self.sizes)
        handoff: Handoff = PROTOCOLS[type(self.protocol)](
            Links(links, links, self.start_ns, rate_of=lambda pool: self.bytes_per_s),
            lambda request, start, stop: stop - start,
            make(cls, cls.Params(), sum(self.sizes)),
            self.protocol,
        )
        if self.decider:
            decider, params = deciders.resolve(self.decider)
            handoff.straight = Straight(make(decider, build_params("decider", decider.Params, dict(params))))
        return handoff


def handoff_of(cluster: Cluster) -> Handoff:
    """What ties its pools together."""
    handoff = cluster.part(Handoff)
    assert handoff is not None
    return handoff


@st.composite
def apart_worlds(
    draw: st.DrawFn, schedulers: Sequence[str] = ("vllm", "vllm", "sglang", "selective"), alike: bool = False
) -> Apart:
    """`alike`: prompts surely share prefixes."""
    scheduler = draw(st.sampled_from(schedulers))
    kv = draw(st.sampled_from(["paged", "prefix-hash", *(["prefix-radix"] * (scheduler == "sglang"))]))
    world = draw(worlds(scheduler, kv, alike=alike))
    fields: dict[str, Any] = {field.name: getattr(world, field.name) for field in dataclass_fields(world)}
    sizes = draw(st.sampled_from([(1, 1), (2, 1), (1, 2)]))
    patience = draw(st.sampled_from([None, None, 3_000, 60_000, 1_000_000]))
    fields |= {
        "replicas": sum(sizes),
        "sizes": sizes,
        "speculation": "",
        "decode_blocks": draw(st.sampled_from([13, 30, 400])),
        "bytes_per_s": draw(st.sampled_from([1_000_000, 30_000_000, 1_000_000_000])),
        "start_ns": draw(st.sampled_from([0, 700])),
        "protocol": draw(protocols()),
        "clients": Clients(timeout_ns=patience),
    }
    return Apart(**fields)


@st.composite
def protocols(draw: st.DrawFn) -> Protocol:
    """Each of them, with times short and long."""
    ms = draw(st.sampled_from([0.0, 0.004]))
    kind = draw(st.sampled_from(list(PROTOCOLS)))
    if kind is TrtllmParams:
        return TrtllmParams(http_ms=ms)
    if kind is SglangParams:
        return SglangParams(handshake_ms=ms, bootstrap_timeout_s=draw(st.sampled_from([5e-6, 300.0])))
    return VllmNixlParams(
        http_ms=ms,
        lease_s=draw(st.sampled_from([0.0, 5e-6, 30.0])),
        lease_renewed=draw(st.booleans()),
        kv_load_failure_policy=draw(st.sampled_from(["fail", "recompute"])),
    )
