"""Scenarios of data-parallel ranks: routers, memory, experts' loads, and what is refused."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from servesim import simulate
from servesim.contracts.cost import Batch
from servesim.cost.curve import Curve
from servesim.cost.data_parallel import check_ranks
from servesim.cost.expert_load import loads, most_loaded
from servesim.errors import UserError
from servesim.hardware import Gpu, ModelSpec, memory_budget
from servesim.run.scenario import Scenario
from servesim.run.server import cost_model_of, load_of

pytestmark = pytest.mark.feature("data_parallel", "view_lag")

SMALL: dict[str, Any] = {"trace": "synth:prompt=300,output=20", "requests": 40, "rate": 50.0, "gpu": "h200"}
GPT_OSS: dict[str, Any] = {**SMALL, "model": "gpt-oss-20b"}


def test_a_run_of_ranks_is_short_to_write_and_named_in_what_it_says() -> None:
    result = simulate(**GPT_OSS, dp=2, ep=2)
    scenario = result.scenario
    assert scenario.router["name"] == "vllm-dp"
    assert (scenario.router["ranks"], scenario.cluster.report_every_s) == (2, 0.1)
    assert result.summary["requests"]["completed"] == 40
    assert result.summary["engine"]["replicas_used"] == 2
    assert any(note.startswith("dp=2: ") for note in result.summary["notes"])


def test_fast_and_reference_mode_are_the_same_with_ranks() -> None:
    fast, plain = (simulate(**GPT_OSS, dp=2, ep=2, mode=mode) for mode in ("fast", "reference"))
    assert (fast.requests.last_token_ns == plain.requests.last_token_ns).all()
    assert (fast.requests.first_token_ns == plain.requests.first_token_ns).all()


def test_a_router_that_is_named_stays() -> None:
    named = Scenario.of({**GPT_OSS, "dp": 2, "router": "least-outstanding"})
    assert (named.router["name"], named.cluster.report_every_s) == ("least-outstanding", None)
    assert Scenario.of({**GPT_OSS, "dp": 2, "preset": "tensorrt-llm"}).router["name"] == "least-outstanding"
    assert Scenario.of({**GPT_OSS, "preset": "vllm"}).router["name"] == "round-robin"


def test_ranks_share_the_weights_of_experts_and_keep_all_others() -> None:
    model, gpu = ModelSpec.load("qwen3-30b-a3b"), Gpu.load("h200")
    limits = {"max_num_batched_tokens": 8192, "max_num_seqs": 256}
    alone, ranks = memory_budget(model, gpu, **limits), memory_budget(model, gpu, dp=4, **limits)
    experts = 48 * 128 * 3 * 2048 * 768 * 2  # layers x experts x three matrices x hidden x width x bf16
    assert alone.weights - ranks.weights == pytest.approx(experts * 3 / 4, abs=2)
    copies = memory_budget(model, gpu, dp=4, redundant_experts=32, **limits)
    assert copies.weights - ranks.weights == pytest.approx(experts / 4 / 4, abs=2)  # 32 of 128 are a quarter


def test_decoding_ranks_are_padded_to_the_fullest_and_prompts_are_not() -> None:
    cost = cost_model_of(Scenario.of({**GPT_OSS, "dp": 2, "ep": 2, "host": "none"}))
    shared = cost._mixtures[0].decoding
    assert shared is cost._mixtures[0].prompts
    decode = [Batch.decodes(n, 100 * n, longest=100) for n in (8, 64)]
    few, many = cost.prices(list(decode))
    of_all = shared.cost(Batch(128), 128)[0]
    assert few.gpu_ns - cost.price(decode[0]).gpu_ns == of_all
    assert many.gpu_ns - cost.price(decode[1]).gpu_ns == of_all
    prompt = Batch(500, [(500, 0)], sampled=1)
    with_prompt = cost.prices([decode[0], prompt])
    assert with_prompt[1].gpu_ns - cost.price(prompt).gpu_ns == shared.cost(Batch(508), 508)[0]
    idle = cost.prices([None, decode[1]])
    assert idle[1] == many, "a rank without work is padded, too"


def test_ranks_of_experts_take_what_as_many_tokens_take_on_as_many_gpus() -> None:
    """Attention over two GPUs, experts dealt out to both: the routed experts of a step are those of two ranks."""
    ranks = cost_model_of(Scenario.of({**GPT_OSS, "dp": 2, "ep": 2, "host": "none"}))
    tensor = cost_model_of(Scenario.of({**GPT_OSS, "tp": 2, "ep": 2, "host": "none"}))
    dealt = next(op for op in ranks._mixtures[0].decoding._per_token if op.name == "experts")
    known = next(op for op in tensor._stages[0]._per_token if op.name == "experts")
    assert (dealt.curve.xs, dealt.curve.ys) == (known.curve.xs, known.curve.ys)


@pytest.mark.parametrize("backend", ["allgather_reducescatter", "deepep_low_latency", "deepep_high_throughput"])
@pytest.mark.parametrize("dp", [8, 16, 64])
def test_ways_to_experts_take_longer_for_more_tokens_and_over_the_network(backend: str, dp: int) -> None:
    base = {**SMALL, "model": "deepseek-v3", "dtype": "fp8", "engine": {"all2all_backend": backend}}
    cost = cost_model_of(Scenario.of({**base, "dp": dp, "ep": dp}))
    way = next(op for op in cost._mixtures[0].decoding._per_token if op.name == "all_to_all").curve
    times = [way.at(dp * m) for m in (1, 16, 128, 1024)]
    assert times == sorted(times)
    if dp > 8:
        inside = cost_model_of(Scenario.of({**base, "dp": 8, "ep": 8}))._mixtures[0]
        assert inside is not None
        near = next(op for op in inside.decoding._per_token if op.name == "all_to_all").curve
        assert all(way.at(dp * m) > near.at(8 * m) for m in (1, 16, 128, 1024))


@pytest.mark.parametrize("backend", ["deepep_low_latency", "deepep_high_throughput"])
def test_a_ninth_box_adds_only_the_bytes_that_eight_measured_ones_did_not_send(backend: str) -> None:
    """A token has 8 experts: 7 of its copies leave one of 8 boxes, 64 / 9 leave one of 9, at three bytes a number and
    four fifths of a card's 50 GB/s."""
    base = {**SMALL, "model": "deepseek-v3", "dtype": "fp8", "host": "none"}
    base["engine"] = {"all2all_backend": backend, "enable_expert_parallel": True}

    def way(dp: int) -> Curve:
        (mixture,) = cost_model_of(Scenario.of({**base, "dp": dp}))._mixtures
        return next(op for op in mixture.decoding._per_token if op.name == "all_to_all").curve

    eight, nine = way(64), way(72)
    more = 58 * 128 * 7168 * 3 * (64 / 9 - 7) / (50 * 0.8)
    assert nine.at(72 * 128) == pytest.approx(eight.at(64 * 128) + more, rel=1e-9)


def test_deepep_takes_its_low_latency_kernels_where_all_ranks_decode_and_the_others_beside_prompts() -> None:
    def model(backend: str) -> Any:
        settings = {**SMALL, "model": "deepseek-v3", "dtype": "fp8", "dp": 16, "ep": 16, "host": "none"}
        return cost_model_of(Scenario.of({**settings, "engine": {"all2all_backend": backend}}))

    both, low, high = (model(f"deepep_{name}") for name in ("auto", "low_latency", "high_throughput"))
    decode, prompt = Batch.decodes(8, 800, longest=100), Batch(2000, [(2000, 0)], sampled=1)
    assert both.prices([decode] * 16) == low.prices([decode] * 16) != high.prices([decode] * 16)
    mixed = [decode] * 15 + [prompt]
    assert both.prices(mixed) == high.prices(mixed) != low.prices(mixed)


def test_over_more_than_a_box_experts_are_loaded_unevenly_unless_the_scenario_says_otherwise() -> None:
    big = {**SMALL, "model": "deepseek-v3", "dtype": "fp8", "dp": 64, "ep": 64}
    model = ModelSpec.load("deepseek-v3")
    assert load_of(Scenario.of(big), model) == most_loaded(256, 8, 64, 1.2)
    assert load_of(Scenario.of({**big, "engine": {"expert_skew": 0}}), model) == 1.0
    assert load_of(Scenario.of({**big, "dp": 8, "ep": 8}), model) is None, "as measured"


def test_loads_fall_as_a_power_law_and_no_expert_gets_a_token_twice() -> None:
    even, uneven = loads(64, 8, 0.0), loads(64, 8, 1.2)
    assert even.tolist() == pytest.approx([1 / 64] * 64)
    assert uneven.sum() == pytest.approx(1.0)
    assert uneven.max() <= 1 / 8 + 1e-12
    assert uneven[0] > 3 * uneven[32] > 0


def test_balancing_experts_lowers_the_load_of_the_most_loaded_gpu() -> None:
    uneven, packed = (most_loaded(256, 8, 32, 1.2, balanced=balanced) for balanced in (False, True))
    copies = most_loaded(256, 8, 32, 1.2, redundant=32, balanced=True)
    assert most_loaded(256, 8, 32, 0.0) == pytest.approx(1.0)
    assert uneven > packed > copies >= 1.0
    assert copies < 1.1


def test_uneven_experts_slow_a_run_and_eplb_gives_most_of_it_back() -> None:
    base = {**GPT_OSS, "dp": 4, "ep": 4}
    even, uneven, balanced = (
        simulate(**base, engine=engine).summary["latency_ms"]["tpot"]["mean"]
        for engine in (
            {"expert_skew": 0.0},
            {"expert_skew": 1.6},
            {"expert_skew": 1.6, "enable_eplb": True, "num_redundant_experts": 16},
        )
    )
    assert uneven > balanced >= even


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model": "llama-3.1-8b", "dp": 2}, "has no experts to distribute"),
        ({"dp": 3, "ep": 2}, "ep = 2 must divide the 3 GPUs"),
        ({"engine": {"num_redundant_experts": 4}}, "set engine.enable_eplb too"),
    ],
)
def test_what_ranks_cannot_be_is_refused_in_one_line(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        simulate(**{**GPT_OSS, **settings})


@pytest.mark.slow
def test_a_deployment_of_64_gpus_serves_ten_thousand_requests() -> None:
    """DeepSeek-V3 over 64 H200 as one replica: 64 ranks of one GPU, experts over all of them. At 30 requests/s it would
    still fill when the last of 10,000 comes (mean E2E 92 s; of 30,000 requests 119 s)."""
    result = simulate(
        trace="synth:prompt=lognormal(mean=1024,sigma=0.8,max=8192),output=lognormal(mean=512,sigma=0.6,max=4096)",
        requests=10_000,
        rate=20,
        model="deepseek-v3",
        dtype="fp8",
        gpu="h200",
        dp=64,
        engine={
            "enable_expert_parallel": True,
            "all2all_backend": "deepep_auto",
            "enable_eplb": True,
            "num_redundant_experts": 32,
        },
    )
    summary = result.summary
    assert summary["requests"]["completed"] == 10_000
    assert summary["engine"]["replicas_used"] == 64
    assert not summary["stability"]["unstable"]


@pytest.mark.parametrize(
    ("model", "tp", "dp", "ep", "message"),
    [
        ("mixtral-8x7b", 4, 1, 4, None),
        ("mixtral-8x7b", 4, 2, 8, None),
        ("llama-3.1-8b", 4, 1, 1, None),
        ("llama-3.1-8b", 1, 2, 1, "has no experts to distribute"),
        ("mixtral-8x7b", 2, 3, 4, "ep = 4 must divide the 6 GPUs of tp 2 x dp 3"),
    ],
)
def test_ranks_and_experts_fit_together_or_are_refused(
    model: str, tp: int, dp: int, ep: int, message: str | None
) -> None:
    refused = pytest.raises(UserError, match=message) if message else nullcontext()
    with refused:
        check_ranks(ModelSpec.load(model), tp, dp, ep)


DUMMY = Batch(1, decode_count=1, decode_context_sum=1, decode_context_sumsq=1, decode_context_max=1)


def test_a_rank_without_work_runs_as_many_dummy_drafts_as_others_draft() -> None:
    """vLLM 0.33: execute_dummy_batch runs 1 + k tokens through the target, and dummy_run k passes through the head."""
    cost = cost_model_of(Scenario.of({**GPT_OSS, "dp": 2, "ep": 2, "host": "none", "speculation": "eagle3:k=3"}))
    busy = replace(Batch.decodes(1, 500), linear_tokens=4, queries_per_sequence=4, drafts=3, draft_k=3)
    dummy = replace(DUMMY, linear_tokens=4, decode_context_sum=4, decode_context_sumsq=16, decode_context_max=4)
    dummy = replace(dummy, queries_per_sequence=4, drafts=3, draft_k=3)
    experts = cost._mixtures[0].decoding.cost(Batch(8), 8)[0]
    own, idle = cost.prices([busy, None])
    assert own.gpu_ns == cost.price(busy).gpu_ns + experts
    assert idle.gpu_ns == cost.price(dummy).gpu_ns + experts
    assert (
        idle.gpu_ns > cost_model_of(Scenario.of({**GPT_OSS, "dp": 2, "ep": 2, "host": "none"})).prices([None])[0].gpu_ns
    )


def test_the_experts_of_a_draft_layer_are_computed_by_all_ranks_in_each_pass() -> None:
    settings = {**SMALL, "model": "deepseek-v3", "dtype": "fp8", "dp": 8, "ep": 8, "host": "none"}
    cost = cost_model_of(Scenario.of({**settings, "speculation": "mtp:k=2"}))
    busy = replace(Batch.decodes(5, 5_000), linear_tokens=15, queries_per_sequence=3, drafts=10, draft_k=2)
    assert cost._drafting is not None
    head = cost._drafting.mixture
    assert head is not None
    shared = cost._mixtures[0].decoding.cost(Batch(8 * 15), 8 * 15)[0]
    passes = [head.decoding.cost(Batch(8 * tokens), 8 * tokens)[0] for tokens in (15, 5)]
    assert cost.prices([busy] * 8)[0].gpu_ns == cost.price(busy).gpu_ns + shared + sum(passes)
    assert passes[0] > 0


def test_stages_of_ranks_add_up_to_their_prices() -> None:
    cost = cost_model_of(Scenario.of({**GPT_OSS, "dp": 2, "ep": 2, "pp": 3, "host": "none", "speculation": "mtp"}))
    batches = [Batch.decodes(7, 3_000), None]
    stages, prices = cost.rank_stages(batches), cost.prices(batches)
    assert [sum(each) for each in stages] == [price.gpu_ns for price in prices]
    whole = cost_model_of(Scenario.of({**GPT_OSS, "dp": 2, "ep": 2, "host": "none", "speculation": "mtp"}))
    assert prices[0].gpu_ns > whole.prices(batches)[0].gpu_ns, "by the ways between the stages"


RANKS: dict[str, Any] = {**SMALL, "model": "qwen3-30b-a3b", "dp": 2, "ep": 2}
FAILURES = ["crash:replica=1,at=0.2,restart=0.1", "slow:replica=2,at=0,until=1,factor=2"]


@pytest.mark.parametrize(
    "more",
    [
        {"speculation": "eagle3"},
        {"pp": 2},
        pytest.param({"replicas": 2}, id="two groups"),
        pytest.param({"replicas": 2, "cluster": {"failures": FAILURES}}, marks=pytest.mark.feature("failures")),
        pytest.param({"offload": "vllm:cpu=1GiB"}, marks=pytest.mark.feature("offload")),
        pytest.param({"preset": "sglang", "offload": "hicache:ratio=2"}, marks=pytest.mark.feature("offload")),
        pytest.param({"pd": "1x1:1x1"}, marks=pytest.mark.feature("handoff")),
        pytest.param({"scaler": "dynamo-planner"}, marks=pytest.mark.feature("scaling")),
    ],
    ids=str,
)
def test_ranks_run_alike_in_both_modes_with_what_real_deployments_have(more: dict[str, Any]) -> None:
    fast, plain = (simulate({**RANKS, **more}, mode=mode) for mode in ("fast", "reference"))
    assert fast.requests.equals(plain.requests)
    counts = fast.summary["requests"]
    assert counts["arrived"] == counts["completed"] + counts["aborted"] == 40


@pytest.mark.feature("handoff")
@pytest.mark.parametrize(("dp", "ranks"), [(2, 2), (4, 0)])
def test_prompts_and_answers_have_groups_of_ranks_of_their_own(dp: int, ranks: int) -> None:
    pools = [
        {"name": "prompts", "role": "prefill", "dp": 2, "ep": 2, "replicas": 2},
        {"name": "answers", "role": "decode", "dp": dp, "ep": dp},
    ]
    settings = {**SMALL, "model": "qwen3-30b-a3b", "pools": pools}
    fast, plain = (simulate(settings, mode=mode) for mode in ("fast", "reference"))
    assert fast.requests.equals(plain.requests)
    assert fast.scenario.router["ranks"] == ranks, "replicas are chosen in turn only if all have as many ranks"
    assert fast.summary["requests"]["completed"] == 40
    assert [pool["replicas"] for pool in fast.summary["pools"].values()] == [4, dp]


@pytest.mark.feature("failures")
def test_an_added_replica_has_as_many_ranks_as_the_others_and_a_wrong_rank_is_refused() -> None:
    found = simulate({**RANKS, "cluster": {"failures": ["add:at=0.1,startup=0.1", "drain:replica=1,at=0.3"]}})
    replicas = found.summary["replicas"]
    assert [[state for _, state in each["states"]] for each in replicas] == [
        *[["ready", "draining", "gone"]] * 2,
        *[["starting", "ready"]] * 2,
    ]
    with pytest.raises(UserError, match="the replica must be from 0 to 1"):
        simulate({**RANKS, "cluster": {"failures": ["crash:replica=2,at=0.1"]}})
