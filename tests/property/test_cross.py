"""Every scheduler on every allocator, under pressure: everything is served, and fast-forwarding changes nothing."""

from __future__ import annotations

import numpy as np
import pytest

from servesim.contracts import State, kv_allocators, schedulers
from servesim.workload.trace import Trace
from tests.property.test_fast_equals_reference import compared
from tests.support.strategies import ALL_AT_ONCE, ALLOCATORS, GROUPED, SHARING
from tests.support.worlds import World, toy_trace

VARIANTS = {
    "continuous": [{}, {"preemption_mode": "swap"}, {"reserve_output": True}],
    "sarathi": [{"chunk_size": 48}],
    "sglang": [
        {"chunked_prefill_size": 64, "schedule_policy": "lpm"},
        {"enable_mixed_chunk": True, "schedule_conservativeness": 0.1, "schedule_policy": "dfs-weight"},
    ],
}
"""Parameters under which a scheduler takes other paths than by default."""


def crowd(seed: int, n: int = 24, gap_ns: int = 10_000) -> Trace:
    """Requests that come faster than they can be served (by default; every 50 us they just can), a third of them with
    a common beginning, more than memory holds."""
    rng = np.random.default_rng(seed)
    prompts = rng.integers(1, 100, n).tolist()
    runs = [[(1, min(p, 40)), (100 + i, p - 40)][: 1 + (p > 40)] if i % 3 == 0 else [(100 + i, p)]
            for i, p in enumerate(prompts)]  # fmt: skip
    outputs = rng.integers(1, 70, n).tolist()
    caps = [o + int(s) for o, s in zip(outputs, rng.choice([0, 0, 9], n), strict=True)]
    arrivals = np.cumsum(rng.integers(0, 2 * gap_ns, n)).tolist()
    return toy_trace(arrivals, prompts, outputs, caps=caps, priorities=rng.integers(0, 3, n).tolist(), runs=runs)


def crossed(allocators: list[str]) -> pytest.MarkDecorator:
    """A test of each scheduler, with its variants, on each allocator."""
    return pytest.mark.parametrize(
        ("scheduler", "params", "kv"),
        [(name, p, kv) for name in schedulers.names() for p in VARIANTS.get(name, [{}]) for kv in allocators],
    )


def crowded(trace: Trace, blocks: int, scheduler: str, params: dict[str, object], kv: str) -> World:
    return World(
        trace,
        kv=kv,
        num_blocks=blocks,
        host_blocks=20,
        scheduler=scheduler,
        scheduler_params=params,
        max_num_seqs=12,
        max_num_batched_tokens=128 if scheduler != "continuous" else 256,
        max_model_len=192,
    )


@pytest.mark.slow
@crossed(ALLOCATORS + SHARING + GROUPED[:1] + ALL_AT_ONCE)
def test_every_scheduler_serves_everything_on_every_allocator(
    scheduler: str, params: dict[str, object], kv: str
) -> None:
    for blocks in (17, 40):
        recorder = compared(crowded(crowd(blocks), blocks, scheduler, params, kv))[0].recorder
        assert set(recorder.requests.column("state").tolist()) == {State.FINISHED}


@pytest.mark.cross
@crossed(kv_allocators.names())
def test_every_scheduler_serves_2000_requests_on_every_allocator(
    scheduler: str, params: dict[str, object], kv: str
) -> None:
    recorder = crowded(crowd(1, 2000, 50_000), 40, scheduler, params, kv).run("fast", check=True).recorder
    assert recorder.requests.column("state").tolist() == [State.FINISHED] * 2000
