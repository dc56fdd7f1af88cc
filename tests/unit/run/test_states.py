"""Scenarios of models with layers that keep a state: how their memory is laid out, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import servesim
from servesim.errors import UserError
from servesim.hardware import ModelSpec
from servesim.hardware.layers import STATE_WINDOW
from servesim.run.scenario import Scenario
from servesim.run.setup import Setup, set_up
from servesim.workload.trace import Trace

MODEL = ModelSpec.load("qwen3.5-35b-a3b")
TRACE = Trace.from_lengths("three", [0, 10**9, 2 * 10**9], [100, 200, 300], [5, 6, 7])


def resolve(**settings: Any) -> Setup:
    given = {"trace": "object:x", "model": MODEL.name, "gpu": "h100", "dtype": "fp8", **settings}
    return set_up(Scenario.of(given), TRACE)


@pytest.mark.parametrize(("preset", "gets"), [("vllm", "hybrid"), ("tensorrt-llm", "hybrid-paged")])
def test_states_are_groups_of_layers_with_blocks_as_long_as_one(preset: str, gets: str) -> None:
    """A state of 2,146,304 bytes, 2,048 a token: 1,048 of them, in whole sixteens."""
    assert MODEL.recurrent is not None
    assert MODEL.recurrent.state_bytes() == 2_146_304
    setup = resolve(preset=preset, kv_dtype="bf16", **({"kv": "paged"} if gets == "hybrid-paged" else {}))
    assert (setup.deployment.block_size, setup.scenario.kv["name"]) == (1056, gets)
    assert setup.cores[0].kv.memory.windows == (None, *[STATE_WINDOW] * 3)
    assert setup.deployment.block_bytes == 10 * 1056 * 2048
    assert any("30 layers keep a state (61.4 MiB" in note and "1056 tokens" in note for note in setup.notes)


def test_blocks_that_are_longer_already_stay_as_they_are() -> None:
    assert resolve(preset="vllm", engine={"block_size": 2048}).deployment.block_size == 2048


def test_sglang_keeps_states_in_a_pool_of_their_own_three_for_each_request_that_runs() -> None:
    setup, all_run = resolve(preset="sglang", engine={"gpu_memory_utilization": 0.7}), resolve(preset="sglang")
    assert any("in a separate pool; prefixes match at any token" in note for note in setup.notes)
    kv_bytes = setup.deployment.num_blocks * setup.deployment.block_bytes
    slots = kv_bytes * 0.9 / MODEL.state_bytes()
    assert setup.cores[0].scheduler.limits.max_num_seqs == pytest.approx(slots / 3, abs=1)
    assert all_run.cores[0].scheduler.limits.max_num_seqs > 2 * slots / 3


def test_fast_mode_with_states_is_plain_stepping() -> None:
    settings = {"model": MODEL.name, "gpu": "h100", "dtype": "fp8", "trace": "synth:prompt=3000,output=90"}
    fast, plain = (servesim.simulate(**settings, requests=40, rate=30, mode=mode) for mode in ("fast", "reference"))
    assert fast.requests.equals(plain.requests)


def test_states_across_pipeline_stages_are_refused() -> None:
    with pytest.raises(
        UserError, match=r"layers that keep a state are not modeled across pipeline stages \(use pp 1\)"
    ):
        resolve(pp=2)
