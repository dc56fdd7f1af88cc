"""Blackwell: formats of four bits, and experts quantized apart from attention."""

from __future__ import annotations

from typing import Any

import pytest

from servesim import simulate
from servesim.contracts.cost import Batch
from servesim.cost.build import build_cost_model
from servesim.cost.formula import Roofline
from servesim.cost.linear import GemmTables
from servesim.cost.moe import experts_curve
from servesim.cost.tables import KernelTables
from servesim.errors import UserError
from servesim.hardware.gpu import Gpu
from servesim.hardware.layers import Experts
from servesim.hardware.model import ModelSpec
from servesim.run.scenario import Scenario
from servesim.run.server import cost_model_of
from servesim.versions import engine_facts

B200 = Gpu.load("b200")
GPT_OSS = Experts(128, 4, 2880, dtype="mxfp4")


def gemms(gpu: Gpu = B200) -> GemmTables:
    return GemmTables(KernelTables.load("b200"), Roofline(gpu), Roofline(gpu))


def test_a_gemm_in_nvfp4_is_the_measured_row() -> None:
    rows = KernelTables.load("b200").rows("gemm", "nvfp4")
    at = next(
        i for i, shape in enumerate(zip(rows["m"], rows["n"], rows["k"], strict=True)) if shape == (64, 8192, 8192)
    )
    assert gemms().curve(8192, 8192, "nvfp4").at(64) == pytest.approx(rows["time_us"][at] * 1e3)


def test_experts_of_gpt_oss_under_mxfp8_are_the_measured_row_and_faster_than_under_bf16() -> None:
    rows = KernelTables.load("b200").rows("moe", "mxfp4_mxfp8")
    shape = zip(*(rows[c].tolist() for c in ("m", "n", "k", "experts", "topk")), strict=True)
    at = next(i for i, found in enumerate(shape) if found == (1024, 2880, 2880, 128, 4))
    mxfp8, bf16 = (experts_curve(gemms(), GPT_OSS, 2880, 1, "mxfp4", backend) for backend in ("mxfp8", "auto"))
    assert mxfp8.at(1024) == pytest.approx(rows["time_us"][at] * 1e3)
    assert mxfp8.at(1024) < bf16.at(1024)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_engines_run_those_of_gpt_oss_under_mxfp8_on_blackwell(engine: str) -> None:
    assert engine_facts(engine, gpu="b200").get("mxfp4_experts") == "mxfp8"
    assert engine_facts(engine, gpu="h100").get("mxfp4_experts") != "mxfp8"


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("deepseek-v3-nvfp4", "nvfp4"),
        ("kimi-k2.5-nvfp4", "nvfp4"),
        ("minimax-m2.5-nvfp4", "nvfp4"),
        ("kimi-k2.5", "int4"),
    ],
)
def test_experts_are_quantized_where_attention_is_not(name: str, dtype: str) -> None:
    model = ModelSpec.load(name)
    assert (model.experts_dtype, model.dtype) == (dtype, "bf16")


def test_arithmetic_that_a_gpu_lacks_is_refused_also_where_the_experts_alone_need_it() -> None:
    h100 = Gpu.load("h100")
    with pytest.raises(UserError, match="h100 has no nvfp4 arithmetic"):
        build_cost_model(ModelSpec.load("llama-3.1-8b"), h100, dtype="nvfp4")
    with pytest.raises(UserError, match="h100 has no nvfp4 arithmetic"):
        build_cost_model(ModelSpec.load("minimax-m2.5-nvfp4"), h100, tp=8)


@pytest.mark.parametrize("name", ["gpt-oss-20b", "qwen3-30b-a3b", "minimax-m2.5-nvfp4"])
def test_expert_parallelism_of_one_gpu_is_the_tensor_parallel_row_to_the_nanosecond(name: str) -> None:
    alike = {"trace": "synth:prompt=1,output=1", "model": name, "gpu": "b200", "preset": "vllm"}
    settings: list[dict[str, Any]] = [{}, {"engine": {"enable_expert_parallel": True}}, {"ep": 1}]
    one, dealt, said = (cost_model_of(Scenario.of({**alike, **more})) for more in settings)
    for tokens in (1, 7, 64, 777, 8192):
        batch = Batch(tokens, prefill=[(tokens, 0)], sampled=1)
        assert one.price(batch).gpu_ns == dealt.price(batch).gpu_ns == said.price(batch).gpu_ns


def test_a_run_with_expert_parallelism_of_one_gpu_is_the_run_without() -> None:
    """Data parallelism of one is what every run is."""
    alike = {"trace": "synth:prompt=200,output=20", "requests": 30, "rate": 20.0, "model": "gpt-oss-20b", "gpu": "b200"}
    one, dealt = (simulate(**alike, engine={"enable_expert_parallel": ep}) for ep in (False, True))
    assert (one.requests.last_token_ns == dealt.requests.last_token_ns).all()
