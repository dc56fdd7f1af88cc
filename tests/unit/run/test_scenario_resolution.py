"""What a scenario becomes once nothing is left open, and what is said about settings without effect."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from servesim.errors import UserError
from servesim.run.scenario import Scenario
from servesim.run.setup import Setup, set_up
from servesim.run.simulate import simulate
from servesim.workload.trace import Content, Trace

TRACE = Trace.from_lengths("three", [0, 10**9, 2 * 10**9], [100, 200, 300], [5, 6, 7])


def resolve(trace: Trace = TRACE, **settings: Any) -> Setup:
    return set_up(Scenario.of({"trace": "object:x", "model": "llama-3.1-8b", "gpu": "h200", **settings}), trace)


def notes(trace: Trace = TRACE, **settings: Any) -> str:
    return "\n".join(resolve(trace, **settings).notes)


def test_defaults_are_those_of_vllm_on_that_gpu() -> None:
    setup = resolve()
    scenario = setup.scenario
    assert (scenario.scheduler["max_num_seqs"], scenario.scheduler["max_num_batched_tokens"]) == (1024, 8192)
    assert resolve(gpu="a100").scenario.scheduler["max_num_batched_tokens"] == 2048
    assert setup.pools[0].pool.depth == 2
    assert setup.cost.asynchronous
    assert scenario.engine.num_gpu_blocks == setup.cores[0].kv.num_blocks > 50_000
    assert scenario.engine.max_model_len == 131_072
    assert scenario.usd_per_gpu_hour == setup.deployment.gpu.usd_per_hour


def test_a_resolved_scenario_resolves_to_itself() -> None:
    for settings in ({}, {"engine": {"gpu_memory_utilization": 0.5}}, {"engine": {"ignore_memory": True}}):
        first = resolve(**settings)
        again = set_up(first.scenario, TRACE)
        assert again.scenario == first.scenario
        assert again.notes == first.notes


def test_synchronous_scheduling_has_one_step_in_flight() -> None:
    setup = resolve(engine={"async_scheduling": False})
    assert setup.pools[0].pool.depth == 1
    assert not setup.cost.asynchronous


def test_the_longest_request_is_what_memory_holds() -> None:
    setup = resolve(engine={"num_gpu_blocks": 101})
    assert setup.scenario.engine.max_model_len == 1600  # one of the blocks is vLLM's null block
    with pytest.raises(UserError, match="max_model_len is 1601, but KV memory has room for only 1600 tokens"):
        resolve(engine={"num_gpu_blocks": 101, "max_model_len": 1601})
    with pytest.raises(UserError, match="from 1 to the 131072 positions"):
        resolve(engine={"max_model_len": 200_000})


def test_without_memory_limits_there_is_room_for_the_whole_trace() -> None:
    setup = resolve(model="llama-3.1-70b", engine={"ignore_memory": True})
    # 7 + 13 + 20 blocks for 105, 206 and 307 tokens
    assert setup.deployment.num_blocks - 2 == 40
    assert "ignore_memory: 42 KV blocks" in "\n".join(setup.notes)


def test_requests_and_rate_apply_to_traces_given_as_objects() -> None:
    setup = resolve(requests=2, rate=0.5)
    assert len(setup.trace) == 2
    assert setup.trace.arrival_ns.tolist() == [0, 2 * 10**9]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "kv prefix-hash: the trace does not record the content of prompts"),
        ({"router": "least-outstanding"}, "router least-outstanding has no effect with one replica"),
        ({"scheduler": "vllm:policy=priority"}, "all requests have the same priority"),
        ({"scheduler": "vllm:long_prefill_token_threshold=300"}, "long_prefill_token_threshold=300 is never reached"),
        ({"seed": 3}, "seed=3 has no effect"),
        ({"requests": 9}, "requests=9: the trace has only 3"),
        ({"engine": {"gpu_memory_utilization": 0.5, "num_gpu_blocks": 100}}, "num_gpu_blocks=100 is specified"),
    ],
)
def test_settings_without_effect_are_reported(settings: dict[str, Any], said: str) -> None:
    assert said in notes(**settings)


@pytest.mark.parametrize(
    ("settings", "not_said"),
    [
        ({"kv": "paged"}, "prefix"),
        ({"router": "least-outstanding", "replicas": 2}, "router"),
        ({"scheduler": "vllm:long_prefill_token_threshold=299"}, "long_prefill"),
        ({}, "seed"),
        ({"engine": {"gpu_memory_utilization": 0.5}}, "gpu_memory_utilization"),
    ],
)
def test_settings_with_effect_are_not(settings: dict[str, Any], not_said: str) -> None:
    assert not_said not in notes(**settings)


def test_prefix_caching_of_a_trace_with_content_needs_no_note() -> None:
    content = Content(np.array([0, 1, 2]), np.array([7, 7]), np.array([64, 64]))
    shared = Trace.from_lengths("shared", [0, 10**9], [64, 64], [2, 2], content=content)
    assert "prefix" not in notes(shared)


def test_all_at_once_and_one_token_answers_are_noted() -> None:
    burst = Trace.from_lengths("burst", [0, 0], [10, 10], [1, 1])
    said = notes(burst, slo="tpot:5")
    assert "all requests arrive at once" in said
    assert "slo tpot has no effect" in said


def test_sequences_are_clamped_to_the_token_budget_as_in_vllm() -> None:
    setup = resolve(scheduler="vllm:max_num_batched_tokens=64")
    assert setup.scenario.scheduler["max_num_seqs"] == 64


def test_without_chunks_the_budget_must_hold_the_longest_prompt() -> None:
    with pytest.raises(UserError, match="without chunked prefill the longest prompt would never run"):
        resolve(scheduler="vllm:enable_chunked_prefill=false")
    resolve(scheduler="vllm:enable_chunked_prefill=false", engine={"max_model_len": 4096})


@pytest.mark.parametrize(
    ("speculation", "said"),
    [("eagle3:k=0", "speculation eagle3: k is 0"), ("eagle3:k=x", "speculation eagle3: k = 'x': Input should be")],
)
def test_a_wrong_parameter_is_named_once(speculation: str, said: str) -> None:
    with pytest.raises(UserError, match=f"^{said}"):
        resolve(speculation=speculation)


def test_limits_that_the_run_never_reached_are_reported() -> None:
    result = simulate(
        trace=TRACE, model="llama-3.1-8b", gpu="h200", replicas=4, scheduler="vllm:max_num_seqs=64", kv="paged"
    )
    said = "\n".join([*result.summary["warnings"], *result.summary["notes"]])
    assert "max_num_seqs=64 is never reached: at most 1 requests ran at once" in said
    assert "replicas=4: only 3 of them served a request" in said


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "llama-3.1-7b"}, "unknown model"),
        ({"gpu": "h300"}, "unknown GPU"),
        ({"model": "llama-3.1-70b"}, "no KV block fits (try --tp 2, --dtype fp8, --ignore-memory)"),
        ({"model": "llama-3.1-70b", "gpu": "l40s"}, "(try --tp 4, --dtype fp8, --ignore-memory)"),
        ({"model": "llama-3.1-405b", "gpu": "l40s"}, "(try --pp, as no tp up to 8 fits, --dtype fp8"),
        pytest.param(
            {"model": "llama-3.1-70b", "pd": "1x1:1x4"},
            "(try tp 2 for pool prefill, ",
            marks=pytest.mark.feature("handoff"),
        ),
        ({"scheduler": "vlm"}, "unknown scheduler 'vlm' (did you mean \"vllm\"?)"),
        ({"scheduler": "vllm:max_num_seq=3"}, "unknown parameter 'max_num_seq' (did you mean \"max_num_seqs\"?)"),
        ({"scheduler": "vllm:max_num_seqs=0"}, "max_num_seqs is 0 but must be at least 1"),
        ({"kv": "pagged"}, 'did you mean "paged"?'),
        ({"router": "nowhere.py:Mine"}, "nowhere.py does not exist"),
        ({"tp": 3}, "tp = 3 does not divide"),
        ({"dtype": "fp7"}, "unknown dtype"),
    ],
)
def test_parts_that_do_not_fit_are_refused_on_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        resolve(**settings)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_pipeline_stages_are_planned_synchronously_and_said_so() -> None:
    setup = resolve(pp=2)
    assert (setup.pools[0].pool.depth, setup.cost.num_stages, setup.cost.asynchronous) == (2, 2, False)
    assert "pipeline stages are planned synchronously" in "\n".join(setup.notes)


@pytest.mark.parametrize("rate", [1e-12, 1e300])
def test_rates_beyond_the_clock_are_refused(rate: float) -> None:
    with pytest.raises(UserError, match="arrivals would span less than 1 ns or more than 146 years"):
        resolve(rate=rate)
