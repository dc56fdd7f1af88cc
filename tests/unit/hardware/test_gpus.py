"""Data sheets: what holds among the figures of a GPU."""

from __future__ import annotations

import pytest

from servesim.hardware.gpu import Gpu, gpu_names


@pytest.mark.parametrize("name", ["b200", "gb200"])
def test_fp4_is_twice_fp8_is_twice_bf16_none_of_them_sparse(name: str) -> None:
    flops = Gpu.load(name).flops
    assert flops["fp4"] == 2 * flops["fp8"] == 4 * flops["bf16"]


def test_an_hgx_b200_by_its_data_sheet() -> None:
    b200 = Gpu.load("b200")
    assert (b200.flops["bf16"], b200.flops["fp8"], b200.flops["fp4"]) == (2.25e15, 4.5e15, 9.0e15)
    assert (b200.bandwidth, b200.nvlink_bandwidth) == (8e12, 900e9)


@pytest.mark.parametrize("name", gpu_names())
def test_no_rate_of_eight_bits_is_more_than_four_times_that_of_sixteen(name: str) -> None:
    """A figure with sparsity would be."""
    flops = Gpu.load(name).flops
    assert flops["bf16"] == flops["fp16"] > 0
    assert all(flops.get(dtype, 0) <= 4.01 * flops["bf16"] for dtype in ("fp8", "int8"))
    assert flops.get("fp8", 2 * flops["bf16"]) == pytest.approx(
        2 * flops["bf16"], rel=0.02
    )  # as rounded in data sheets


def test_four_bits_of_floating_point_are_arithmetic_of_blackwell_data_centre_gpus_alone() -> None:
    assert [name for name in gpu_names() if "fp4" in Gpu.load(name).flops] == ["b200", "b300", "gb200", "gb300"]
