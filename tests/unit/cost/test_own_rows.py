"""What an engine's own kernel tables hold beside the kernel a row is named after is not priced twice."""

from __future__ import annotations

import shutil
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from servesim.contracts import Batch
from servesim.cost import build_cost_model
from servesim.cost.breakdown import breakdown
from servesim.cost.formula import Roofline
from servesim.cost.linear import GemmTables
from servesim.cost.tables import KernelTables
from servesim.hardware import Gpu, ModelSpec
from servesim.versions import engine_facts

DECODE = Batch.decodes(8, 8000, longest=1000)


def parts(model: str, engine: str, tables: str | None = None) -> dict[str, float]:
    facts = engine_facts(engine, None, "h100")
    return breakdown(build_cost_model(ModelSpec.load(model), Gpu.load("h100"), engine=facts, tables=tables), DECODE)


def gemm(quantizing_us: float, dtype: str = "fp8") -> tuple[float, float]:
    """Time of 8 and of 16,384 tokens through a measured layer of 1,024 by 8,192."""
    roofline = Roofline(Gpu.load("h100"))
    curve = GemmTables(KernelTables.load("h100-trtllm"), roofline, roofline, False, {"fp8": (quantizing_us, 0)}).curve(
        8192, 1024, dtype
    )
    return curve.at(8), curve.at(16384)


def test_rows_that_quantize_are_that_much_shorter_where_the_engine_does_so_elsewhere() -> None:
    (few, many), (plain_few, plain_many) = gemm(7.2), gemm(0.0)
    assert (plain_few - few, plain_many - many) == (pytest.approx(7200.0), pytest.approx(7200.0))
    assert gemm(7.2, "bf16") == gemm(0.0, "bf16")


@pytest.mark.parametrize(
    ("gpu", "version"), [("h100", None), ("h200", None), ("b200", None), ("h100", "1.0.0rc3"), ("h200", "1.0.0rc3")]
)
def test_that_time_is_what_the_rows_of_one_framework_take_beyond_those_of_two_others(
    gpu: str, version: str | None
) -> None:
    """The median over shapes to 64 tokens and 8,192 wide inputs, in the mean of both; none in bf16."""
    facts = engine_facts("tensorrt-llm", version, gpu)
    stated = facts.get("kernel_rows")["quantizing_us"]["fp8"][0]
    for dtype, found in (("fp8", stated), ("bf16", 0.0)):
        own = few_tokens(facts.get("kernel_tables"), dtype)
        beyond = []
        for name in (gpu, f"{gpu}-sglang"):
            other = few_tokens(name, dtype)
            beyond.append(np.median([own[shape] - other[shape] for shape in own.keys() & other.keys()]))
        assert np.mean(beyond) == pytest.approx(found, abs=0.3)


@pytest.mark.parametrize("k", [256, 1024, 4096, 8192, 16384])
def test_the_kernel_that_quantizes_to_4_bits_grows_with_the_inputs_alone(k: int) -> None:
    """The median over output widths and 1 to 64 tokens, beside the rows of another framework."""
    once, wide = engine_facts("tensorrt-llm", None, "b200").get("kernel_rows")["quantizing_us"]["nvfp4"]
    own, other = (few_tokens(f"b200-{name}", "nvfp4", 16384) for name in ("trtllm", "sglang"))
    for few in (range(1, 9), range(9, 65)):
        beyond = [own[shape] - other[shape] for shape in own.keys() & other.keys() if shape[0] in few and shape[2] == k]
        assert np.median(beyond) == pytest.approx(once + wide * k / 1000, abs=0.35 + 0.03 * k / 1000)


def few_tokens(tables: str, dtype: str, most: int = 8192) -> dict[tuple[int, ...], float]:
    """Microseconds by tokens, output and input width."""
    rows = KernelTables.load(tables).rows("gemm", dtype)
    shapes = zip(*(rows[name].tolist() for name in ("m", "n", "k", "time_us")), strict=True)
    return {(m, n, k): us for m, n, k, us in shapes if m <= 64 and k <= most}


def test_no_row_becomes_faster_than_the_data_sheet_allows() -> None:
    few, many = gemm(1e6)
    roofline = Roofline(Gpu.load("h100"))
    assert few == roofline.gemm(8, 8192, 1024, "fp8") > 0
    assert many == roofline.gemm(16384, 8192, 1024, "fp8")


def test_tensorrt_llm_rotates_and_writes_keys_within_attention_unless_a_norm_comes_first() -> None:
    assert not {"kv_write", "rotary"} & parts("llama-3.1-8b", "tensorrt-llm").keys()
    normed = parts("qwen3-8b", "tensorrt-llm")
    assert "kv_write" not in normed
    assert "rotary" in normed
    assert {"kv_write", "rotary"} <= parts("llama-3.1-8b", "sglang").keys()


def test_tables_that_are_not_the_engine_s_own_are_taken_as_they_are(tmp_path: Path) -> None:

    folder = tmp_path / "mine"
    shutil.copytree(str(resources.files("servesim.calibrate.tables") / "h100-trtllm"), folder)
    assert {"kv_write", "rotary"} <= parts("llama-3.1-8b", "tensorrt-llm", str(folder)).keys()
