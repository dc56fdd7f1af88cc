"""The policies shown in docs/writing-a-policy.md do exactly what the built-in ones named there do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import servesim
from tests.property.test_cross import crowd
from tests.support.documents import blocks
from tests.support.worlds import World

PAGE = Path(__file__).resolve().parents[3] / "docs" / "writing-a-policy.md"
WORLD = World(crowd(3), num_blocks=60, max_num_seqs=12, max_num_batched_tokens=128, max_model_len=192)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("policies")
    found = {}
    for block in blocks(PAGE.read_text()):
        if block.argument.endswith(".py"):
            found[block.argument] = folder / block.argument
            found[block.argument].write_text(block.text)
    assert set(found) == {
        *("fcfs.py", "aging.py", "tokens.py", "lfu.py", "least.py", "affine.py", "booked.py", "small.py", "hasty.py"),
        *("queue_scaler.py", "energy.py", "store.py"),
    }
    return found


def records(world: World) -> tuple[list[list[int]], list[list[int]]]:
    recorder = world.run("reference", check=True).recorder
    return recorder.requests.array().tolist(), recorder.steps.array().tolist()


@pytest.mark.parametrize("kv", ["paged", "prefix-hash"])
def test_the_scheduler_is_selective_batching(files: dict[str, Path], kv: str) -> None:
    theirs = replace(WORLD, kv=kv, scheduler=f"{files['fcfs.py']}:Fcfs")
    ours = replace(WORLD, kv=kv, scheduler="selective", scheduler_params={"fused_attention": True})
    assert records(theirs) == records(ours)


@pytest.mark.parametrize("scheduler", ["vllm", "continuous", "sarathi"])
def test_the_allocator_is_paged_memory_in_blocks_of_one(files: dict[str, Path], scheduler: str) -> None:
    small = replace(WORLD, scheduler=scheduler, block_size=1, num_blocks=400, max_num_batched_tokens=200)
    theirs = replace(small, kv=f"{files['tokens.py']}:Tokens")
    assert records(theirs) == records(replace(small, kv="paged", num_blocks=401))  # one is the null block


def test_the_router_is_least_outstanding(files: dict[str, Path]) -> None:
    theirs = replace(WORLD, replicas=3, router=f"{files['least.py']}:Least")
    assert records(theirs) == records(replace(WORLD, replicas=3, router="least-outstanding"))


def test_the_speculator_is_a_draft_model(files: dict[str, Path]) -> None:
    def run(speculation: str) -> servesim.Result:
        trace = "synth:rate=4,prompt=200,output=60"
        base = {"trace": trace, "requests": 40, "model": "llama-3.1-8b", "gpu": "h200"}
        return servesim.simulate({**base, "speculation": speculation, "acceptance": "independent:alpha=0.7"})

    theirs, ours = run(f"{files['small.py']}:Small"), run("draft-model:model=llama-3.2-1b,k=2")
    assert theirs.requests.equals(ours.requests)
    assert theirs.steps.equals(ours.steps)


def test_the_feature_reports_energy_and_its_settings_move_it(files: dict[str, Path]) -> None:
    settings = {"trace": "synth:rate=4,prompt=200,output=20", "requests": 20, "model": "llama-3.1-8b", "gpu": "h200"}
    own = settings | {"features": [f"{files['energy.py']}:Energy"]}
    runs = [servesim.simulate({**own, "energy": {"idle_w": idle}}) for idle in (0.0, 100.0)]
    none, some = (run.summary["energy"]["joules_per_request"] for run in runs)
    engine = runs[0].summary["engine"]
    idle_s = runs[0].summary["duration_s"] * (1 - engine["gpu_busy_share"])
    assert some - none == pytest.approx(100 * idle_s / 20)


@pytest.mark.feature("offload")
def test_the_store_is_of_all_replicas_and_a_slow_link_delays_first_tokens(files: dict[str, Path]) -> None:
    """Both replicas have one head on their GPUs in the end: the first computed it, the second loaded it."""
    trace = "synth:arrivals=constant,rate=2,prompt=600,output=4,prefix=shared(groups=1,length=512)"
    settings = {"trace": trace, "requests": 20, "model": "llama-3.1-8b", "gpu": "h200", "replicas": 2}
    store = f"{files['store.py']}:Store"
    fast, slow = (
        servesim.simulate({**settings, "router": "round-robin"}, offload=f"{store}:gb_s={speed}", conclude=False)
        for speed in (25, 1)
    )
    figures = fast.summary["offload"]
    assert figures["hit_rate"]["store"] == 512 / (20 * 600)
    assert figures["loaded_tokens"] == 512
    assert "capacity_tokens" not in figures, "it has no limit"
    second = [run.requests["ttft_ns"].iloc[1] for run in (fast, slow)]
    assert second[1] - second[0] == pytest.approx(512 * 131_072 * (1 - 1 / 25), abs=2)


@pytest.mark.feature("scaling")
def test_the_autoscaler_keeps_its_target(files: dict[str, Path]) -> None:
    settings = {
        "trace": "synth:rate=40,prompt=2000,output=400",
        "requests": 400,
        "model": "llama-3.1-8b",
        "gpu": "h100",
    }
    scaler = f"{files['queue_scaler.py']}:PerReplica:target=10,max=4"
    run = servesim.simulate(settings, scaler=scaler, start={"weights_gb_s": 1000.0}, conclude=False)
    assert max(len(run.summary["replicas"]), 1) > 1
