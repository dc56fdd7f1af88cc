"""Prices as in hand calculations, and of kernels that engines no longer run: data-sheet rates, float32, attention
that is not fused, kernels launched one by one."""

from __future__ import annotations

from typing import Any

import pytest

from servesim import simulate
from servesim.contracts.cost import Batch
from servesim.cost import TableCostModel, build_cost_model
from servesim.cost.attention import roofline_attention
from servesim.cost.breakdown import breakdown
from servesim.cost.eager import EagerAttention
from servesim.cost.formula import Roofline
from servesim.cost.grid import HeadShape
from servesim.cost.host import HostTerms, host_terms
from servesim.errors import UserError
from servesim.hardware import Gpu, ModelSpec


def cost(model: str, gpu: str = "h100", **options: Any) -> TableCostModel:
    return build_cost_model(ModelSpec.load(model), Gpu.load(gpu), **options)


def decode(count: int, context: int) -> Batch:
    return Batch.decodes(count, count * context, count * context**2, context)


@pytest.mark.parametrize(("batch", "ms"), [(1, 8.02), (64, 23.80), (256, 71.87)])
def test_an_ideal_decode_step_reads_all_weights_and_keys_and_values_once(batch: int, ms: float) -> None:
    spec = ModelSpec.load("llama-2-13b")
    read = 2 * spec.num_params + batch * 1024 * 2 * 40 * 40 * 128 * 2
    ns = cost("llama-2-13b", tables="ideal").price(decode(batch, 1024)).ns
    assert ns == pytest.approx(read / 3.35e3, rel=1e-3)  # norm weights apart
    assert ns / 1e6 == pytest.approx(ms, abs=0.005)


def test_an_ideal_prompt_computes_at_the_peak() -> None:
    spec = ModelSpec.load("llama-2-13b")
    parts = breakdown(cost("llama-2-13b", tables="ideal"), Batch(4096, [(4096, 0)], sampled=1))
    linear = sum(parts[name] for name in ("qkv", "attention_out", "up", "down"))
    matrices = spec.num_params - spec.embedding_params
    assert linear == pytest.approx(2 * matrices * 4096 / 989e12 * 1e9, rel=1e-3)
    # q k and p v over the pairs of the causal half (and 256 a token, `servesim.cost.grid.work`)
    pairs = 4096 * 4096 / 2 + 256 * 4096
    assert parts["attention_prefill"] == pytest.approx(40 * 4 * 5120 * pairs / 989e12 * 1e9)
    assert "norm" not in parts
    assert "activation" not in parts


def test_the_ideal_is_below_the_formula_and_below_what_was_measured() -> None:
    for batch in (decode(1, 100), decode(64, 1000), Batch(2048, [(2048, 0)], sampled=1)):
        ideal, formula, measured = (cost("llama-3.1-8b", tables=t).price(batch).ns for t in ("ideal", "roofline", None))
        assert ideal < formula
        assert ideal < measured


def test_float32_moves_twice_the_bytes_and_computes_on_cuda_cores() -> None:
    wide = cost("llama-2-7b", tables="ideal", dtype="fp32", kv_dtype="fp32")
    narrow = cost("llama-2-7b", tables="ideal")
    assert wide.price(decode(1, 512)).ns == pytest.approx(2 * narrow.price(decode(1, 512)).ns, rel=1e-6)
    prompt = Batch(2048, [(2048, 0)], sampled=1)
    assert wide.price(prompt).ns / narrow.price(prompt).ns == pytest.approx(989 / 67, rel=0.01)


def test_attention_that_is_not_fused_writes_and_reads_the_scores_of_every_head() -> None:
    roofline = Roofline.ideal(Gpu.load("a100"))
    shape = HeadShape(32, 8, 128)
    attention = EagerAttention(roofline_attention(roofline, shape, 2.0), roofline, shape)
    # 8192 x 8192 scores of 2 bytes are 134 MB a head, written and read twice: scores, probabilities
    moved = 32 * 4 * 8192**2 * 2
    assert attention.prefill(1).at(8192**2 / 2) == pytest.approx(moved / 2.039e12 * 1e9)
    kv, scores = 2 * 8 * 128 * 2, 4 * 32 * 2
    assert attention.decode(4).at(1000) == pytest.approx(4 * 1000 * (kv + scores) / 2.039e12 * 1e9)


def test_a_scenario_chooses_attention_that_is_not_fused() -> None:
    base: dict[str, Any] = {"trace": "synth:rate=1,prompt=4000,output=2", "requests": 1, "model": "llama-3.1-8b"}
    base |= {"gpu": "h100", "host": "none"}
    fused, eager = simulate(base), simulate(base, engine={"attention_backend": "eager"})
    for metric, least in (("ttft", 1.3), ("tpot", 1.0)):
        assert eager.summary["latency_ms"][metric]["mean"] > least * fused.summary["latency_ms"][metric]["mean"]


def test_latent_attention_is_not_priced_unfused() -> None:
    with pytest.raises(UserError, match="attention_backend eager: deepseek-v3 uses latent attention"):
        cost("deepseek-v3", tp=8, attention_backend="eager")


def test_a_step_takes_at_least_as_long_as_launching_its_kernels() -> None:
    terms = HostTerms("eager", launch_per_kernel=26_000.0)
    eager, graphs = cost("llama-3.1-8b", host=terms), cost("llama-3.1-8b")
    # 32 layers of ten kernels, embedding, last norm, LM head, sampler
    assert eager.price(decode(1, 512)).ns == 324 * 26_000
    assert eager.price(decode(1, 512)).gpu_ns == graphs.price(decode(1, 512)).gpu_ns
    assert eager.price(decode(256, 512)).ns == graphs.price(decode(256, 512)).ns > 324 * 26_000
    # nothing is sampled in the middle of a prompt
    assert eager.host(Batch(64, [(64, 0)])).launching == 322 * 26_000


def test_terms_without_graphs_are_shipped_and_never_taken_for_vllm() -> None:
    assert HostTerms.load("pytorch-eager").launch_per_kernel == 26_000
    vllm = host_terms("vllm", "h100")
    assert vllm is not None
    assert vllm.launch_per_kernel == 0


def test_eager_mode_adds_launches_to_the_terms_of_an_engine_and_pads_nothing() -> None:
    vllm = host_terms("vllm", "h100")
    assert vllm is not None
    eager = vllm.without_graphs()
    assert (eager.launch_per_kernel, eager.padding()) == (26_000, [])
    assert (eager.name, eager.exposed, eager.front_in) == (vllm.name, vllm.exposed, vllm.front_in)
    assert "8.4 ms" in eager.provenance["launch_per_kernel"]
    assert set(eager.provenance) == {*vllm.provenance, "launch_per_kernel"}


def test_kernels_of_another_engine_are_shipped_under_a_name() -> None:
    named = cost("llama-3.1-8b", tables="h100-trtllm")
    assert named.tables is not None
    assert named.tables.folder.name == "h100-trtllm"
    own, theirs = (c.price(decode(64, 1024)) for c in (cost("llama-3.1-8b"), named))
    assert own.ns != theirs.ns
    assert own.ns == pytest.approx(theirs.ns, rel=0.2)
    assert sum(theirs.shares[:2]) > 0.8
    with pytest.raises(UserError, match="h100-nothing contains no kernel tables"):
        cost("llama-3.1-8b", tables="h100-nothing")


def test_weights_of_few_bits_are_read_as_such_and_computed_in_16() -> None:
    spec = ModelSpec.load("llama-2-7b")
    layers = spec.num_params - spec.embedding_params
    whole = cost("llama-2-7b", tables="ideal").price(decode(1, 1)).ns
    for dtype, bits in (("nf4", 4.127), ("int3", 3), ("ternary", 1.58)):
        ns = cost("llama-2-7b", tables="ideal", dtype=dtype).price(decode(1, 1)).ns
        assert whole - ns == pytest.approx(layers * (16 - bits) / 8 / 3.35e3, rel=2e-3)
    prompt = Batch(8192, [(8192, 0)], sampled=1)
    few, many = (cost("llama-2-7b", tables="ideal", dtype=dtype).price(prompt).ns for dtype in ("int3", "bf16"))
    assert few == many
