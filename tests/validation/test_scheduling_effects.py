"""What the schedulers are for: no stalls with Sarathi, short answers unharmed by long ones with SRPT and FastServe."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

import servesim
from servesim import draws
from servesim.engine.core import EngineCore
from servesim.records.step import Step
from servesim.workload.trace import Trace
from tests.support.examples import examples
from tests.support.strategies import worlds
from tests.support.worlds import World


def every_plan(world: World, look: object) -> None:
    """Run a world and hand each replica's core to `look` after each plan."""
    cluster = world.cluster("reference", check=True)
    for replica in cluster.replicas:
        plan = replica.core.plan

        def planned(now: int, core: EngineCore = replica.core, plan: object = plan) -> Step | None:
            step = plan(now)  # type: ignore[operator]
            look(core)  # type: ignore[operator]
            return step  # type: ignore[no-any-return]

        replica.core.plan = planned  # type: ignore[method-assign]
    cluster.run()


@examples(100)
@given(worlds("sarathi"))
def test_with_sarathi_no_decode_waits_and_prefills_get_what_decodes_leave_of_a_chunk(world: World) -> None:
    def look(core: EngineCore) -> None:
        scheduler, plan = core.scheduler, core.last_plan
        assert plan is not None
        prefilling = scheduler.prefill_end  # type: ignore[attr-defined]
        decodes = [r for r in scheduler.running if r not in prefilling]
        waits = [r for r in decodes if r not in plan.tokens and not r.num_output_placeholders]
        assert not waits, f"{waits} decode, and sit the step out"
        beside = sum(n for r, n in plan.tokens.items() if r in prefilling)
        budget = scheduler._budget(0)  # type: ignore[attr-defined]
        assert beside <= max(budget - sum(r in plan.tokens for r in decodes), 0)

    every_plan(world, look)


def bursts(count: int = 900) -> Trace:
    """Bursts of 60 requests every 20 seconds; three in four want a few words, the others long answers."""
    rows = np.arange(count)
    u = draws.uniform(0, "burst outputs", rows)
    output = np.where(u < 0.75, 4 + 20 * u, 300 + 2400 * (u - 0.75)).astype(np.int64)
    arrival = (rows // 60) * 20_000_000_000 + (rows % 60) * 2_000_000
    prompt = 64 + (1500 * draws.uniform(0, "burst prompts", rows) ** 3).astype(np.int64)
    zeros = np.zeros(count, dtype=np.int64)
    return Trace("bursts", arrival, prompt, output, output, zeros.astype(bool), zeros)


@pytest.mark.slow
def test_srpt_and_fastserve_cut_the_mean_on_bursts_and_long_answers_pay() -> None:
    rows = {
        "first come, first served (vllm)": ("vllm", "max_tokens"),
        "fastserve": ("fastserve", "max_tokens"),
        "sjf, error 0.5": ("sjf", "random:error=0.5"),
        "srpt, error 0.5": ("srpt", "random:error=0.5"),
        "srpt-oracle": ("srpt-oracle", "max_tokens"),
    }
    mean, worst = {}, {}
    for name, (scheduler, predictor) in rows.items():
        result = servesim.simulate(
            trace=bursts(),
            model="llama-3.1-8b",
            gpu="h200",
            host="none",
            scheduler={"name": scheduler, "max_num_seqs": 8, "max_num_batched_tokens": 2048},
            predictor=predictor,
            engine={"async_scheduling": False},
        )
        latency = result.summary["latency_ms"]["e2el"]
        mean[name], worst[name] = latency["mean"], latency["p99"]
        print(f"{name:32} mean {latency['mean']:8.0f} ms  p50 {latency['p50']:8.0f}  p99 {latency['p99']:8.0f}")
    fcfs = "first come, first served (vllm)"
    assert mean["srpt-oracle"] == min(mean.values())
    assert mean["srpt-oracle"] < mean["srpt, error 0.5"] < mean["sjf, error 0.5"] * 1.05 < mean[fcfs]
    assert mean["fastserve"] < 0.9 * mean[fcfs]
    assert worst["srpt-oracle"] > worst[fcfs], "the longest answers pay"
