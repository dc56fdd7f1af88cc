"""Conversion of handoff settings into the protocol and the links that carry KV."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any

from servesim.contracts import KVAllocator, Scheduler, build_params, make
from servesim.contracts.decider import deciders
from servesim.contracts.params import check_least, check_most
from servesim.contracts.request import Request
from servesim.contracts.router import Role, Router
from servesim.contracts.section import Settings
from servesim.errors import UserError, shown, suggest
from servesim.features.handoff.first import Sglang, Trtllm
from servesim.features.handoff.links import KINDS, Links
from servesim.features.handoff.part import Handoff
from servesim.features.handoff.straight import Straight
from servesim.features.handoff.vllm import VllmNixl

if TYPE_CHECKING:
    from servesim.engine.pool import Pool
    from servesim.run.pool import PoolSetup

PROTOCOLS: Mapping[str, type[VllmNixl | Trtllm | Sglang]] = {cls.name: cls for cls in (VllmNixl, Sglang, Trtllm)}
DEFAULTS = {"sglang": "sglang", "tensorrt-llm": "trtllm"}
"""Protocols by the preset of the decode side; vllm-nixl for all others."""


@dataclass(frozen=True)
class LinkParams:
    """The links between servers."""

    link: str = "rdma-400"
    """Kind of link, from servesim.features.handoff.links."""
    gb_s: float | None = None
    """Bandwidth of a GPU in each direction, GB/s; default: the link's."""
    start_us: float | None = None
    """Microseconds until the first byte of a transfer; default: the link's."""
    message_overhead_bytes: int = 0
    """Overhead of each message (a block of one layer), in bytes that could be sent in the same time."""

    def __post_init__(self) -> None:
        check_least(self, 0, "start_us", "message_overhead_bytes")
        check_most(self, 1 << 30, "message_overhead_bytes")
        if self.link not in KINDS:
            raise ValueError(
                f"link is {shown(self.link)} but must be one of {', '.join(KINDS)}{suggest(self.link, KINDS)}"
            )
        if self.gb_s is not None and not 1e-3 <= self.gb_s <= 1e6:
            raise ValueError(f"gb_s is {self.gb_s:g} but must be from 0.001 to 1e6")


def with_pd(settings: Mapping[str, Any]) -> Settings:
    """Return settings with the two pools that `pd` is short for; raise UserError if `pd` is malformed."""
    text = settings["pd"]
    found = re.fullmatch(r"(\d+)x(\d+):(\d+)x(\d+)", str(text))
    if found is None:
        raise UserError(f"pd is {shown(text)} but must be REPLICASxTP:REPLICASxTP (prefill:decode), as in 2x1:1x4")
    if settings.get("pools"):
        raise UserError("pd and pools are both specified: remove one (pd is short for two pools)")
    prefill, prefill_tp, decode, decode_tp = map(int, found.groups())
    pools = [
        {"name": "prefill", "role": "prefill", "replicas": prefill, "tp": prefill_tp},
        {"name": "decode", "role": "decode", "replicas": decode, "tp": decode_tp},
    ]
    return {key: value for key, value in settings.items() if key != "pd"} | {"pools": pools}


def handoff_of(
    settings: Mapping[str, Any] | None,
    disaggregate: Mapping[str, Any] | None,
    pools: Sequence[PoolSetup],
    make_router: Callable[[], Router],
) -> Handoff | None:
    """Return the handoff from prefill pools to decode pools, or None if no pool is limited to one role. Raise UserError
    if one role is missing or a pool cannot take part."""
    roles: set[Role] = {pool.pool.role for pool in pools}
    if roles == {"both"}:
        for name, given in (("handoff", settings), ("disaggregate", disaggregate)):
            if given:
                raise UserError(f"{name} is specified, but no pool has the role prefill or decode")
        return None
    for role in ("prefill", "decode"):
        if role not in roles:
            raise UserError(f"pools: no pool has the role {role}, so no request could be served")
    own = dict(settings or {"name": _default(pools)})
    name = own.pop("name")
    protocol = PROTOCOLS.get(name)
    if protocol is None:
        raise UserError(f"handoff {shown(name)} is unknown; choose from {', '.join(PROTOCOLS)}")
    link, rest = _link_of(own)
    params = build_params("handoff", protocol.Params, rest)
    _check(pools)
    handoff = protocol(links_of(link, pools), size_of(pools), make_router(), params)
    handoff.said = said_of(link)
    if disaggregate:
        handoff.straight = straight_of(disaggregate, handoff)
    return handoff


def straight_of(settings: Mapping[str, Any], handoff: Handoff) -> Straight:
    """Return the choice of the requests that decode replicas serve alone. Raise UserError if they cannot, or the
    decider does not know what it needs."""
    if isinstance(handoff, Sglang):
        raise UserError(
            "disaggregate: SGLang's decode servers compute no prompts (each request needs a prefill server's bootstrap)"
        )
    cls, params = deciders.configured(settings)
    router = handoff.decode_router
    if cls.needs_cached and not knows_caches(router):
        raise UserError(
            f"disaggregate {cls.name} decides by cached tokens, of which router {router.name if router else '?'} knows "
            "nothing; use one that does, such as dynamo-kv or llm-d-precise"
        )
    return Straight(make(cls, params))


def knows_caches(router: Router | None) -> bool:
    """Return whether a router, or the one behind it, knows which tokens replicas have cached."""
    inner: Any = getattr(router, "inner", router)
    return type(inner).cached_tokens is not Router.cached_tokens


def _default(pools: Sequence[PoolSetup]) -> str:
    preset = next(pool.scenario.preset for pool in pools if pool.pool.role == "decode")
    return DEFAULTS.get(preset or "vllm", "vllm-nixl")


def said_of(params: LinkParams) -> str:
    """Return a note for the reader about the KV transfer from prefill pools to decode pools."""
    kind = KINDS[params.link]
    gb_s = kind.gb_s if params.gb_s is None else params.gb_s
    start_us = kind.start_us if params.start_us is None else params.start_us
    why = "as given" if params.gb_s is not None else kind.source
    return (
        f"KV goes from prefill to decode replicas at {gb_s:g} GB/s per GPU after {start_us:g} us ({params.link}: "
        f"{why}). The time spent in the proxy (handoff.http_ms or handshake_ms) is an assumption"
    )


def _link_of(settings: Mapping[str, Any]) -> tuple[LinkParams, dict[str, Any]]:
    """Return the settings of a handoff that describe links, and the remaining settings."""
    names = {field.name for field in fields(LinkParams)}
    own = {key: value for key, value in settings.items() if key in names}
    link: LinkParams = build_params("handoff", LinkParams, own)
    return link, {key: value for key, value in settings.items() if key not in names}


def _check(pools: Sequence[PoolSetup]) -> None:
    """Raise UserError if one pool could not use the KV of another."""
    known = {(p.deployment.model.name, p.scenario.kv_dtype) for p in pools if p.pool.role != "both"}
    if len(known) > 1:
        raise UserError(f"pools: pools that hand over KV must have the same model and KV format: {sorted(known)}")
    for pool in pools:
        if pool.pool.role == "decode":
            scheduler, kv = pool.server.policies.scheduler, pool.server.policies.kv
            if not can_receive(scheduler, kv):
                raise UserError(
                    f"pools: {pool.name} cannot wait for KV with scheduler {scheduler.name} over kv {kv.name}"
                )


def can_receive(scheduler: type[Scheduler], kv: type[KVAllocator]) -> bool:
    """Return whether requests under these policies can wait for remote KV."""
    return "remote_kv" in scheduler.supports and (not kv.shares or "remote_kv" in kv.supports)


def links_of(params: LinkParams, pools: Sequence[PoolSetup]) -> Links:
    """Return the links of all replicas: each GPU has its own."""
    kind = KINDS[params.link]
    start_us = kind.start_us if params.start_us is None else params.start_us
    by_replica = [rate_of(params, pools, pool.pool) for pool in pools for _ in range(len(pool.cores))]
    messages = min(message_bytes(pool) for pool in pools)
    rates = partial(rate_of, params, pools)
    return Links(by_replica, by_replica, round(start_us * 1000), params.message_overhead_bytes, messages, rates)


def rate_of(params: LinkParams, pools: Sequence[PoolSetup], pool: Pool) -> int:
    """Return the bytes per second, in each direction, of a replica of a pool."""
    gb_s = KINDS[params.link].gb_s if params.gb_s is None else params.gb_s
    scenario = next(each.scenario for each in pools if each.pool is pool)
    return round(gb_s * 1e9) * int(scenario.tp * scenario.pp)


def message_bytes(pool: PoolSetup) -> int:
    """Return the bytes of a block in one layer on one GPU."""
    deployment = pool.deployment
    return max(deployment.block_bytes // -(-deployment.model.num_layers // len(_windows(pool))), 1)


def _windows(pool: PoolSetup) -> tuple[int | None, ...]:
    """Return the window of each group of layers that has its own block tables; None for a group that keeps all
    tokens."""
    kv = pool.pool.cores[0].kv
    return kv.memory.windows if kv.grouped else (None,)


def size_of(pools: Sequence[PoolSetup]) -> Callable[[Request, int, int], int]:
    """Return a function that gives the bytes that decode replicas read for some tokens: each GPU's KV for them in whole
    blocks; with a window, only the blocks that later tokens can still attend to. If there are fewer KV heads than GPUs,
    or with latent attention, the KV is stored and sent several times."""
    pool = next(pool for pool in pools if pool.pool.role == "decode")
    block, tp, windows = pool.deployment.block_size, pool.scenario.tp, _windows(pool)
    per_block = pool.deployment.block_bytes * pool.scenario.pp * tp

    def size(request: Request, start: int, stop: int) -> int:
        firsts = (max(start, stop - window + 1) // block if window else start // block for window in windows)
        return sum(-(-stop // block) - first for first in firsts) * per_block

    return size
