"""Data sheets: what holds among the figures of a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from servesim.cost.tables import KernelTables
from servesim.errors import UserError
from servesim.hardware.gpu import Gpu, gpu_names

SHEET = """\
description: a card of mine
memory_bytes: 25.3e+9
bandwidth: 1.0e+12
flops: {bf16: 165.0e+12}
nvlink_bandwidth: 0
pcie_bandwidth: 32.0e+9
usd_per_hour: 0.4
tables: """


@pytest.mark.parametrize(
    "name", ["a10", "nonsense", "h100-sglang", "host", "'../h100'", "none", "''", "7", "[h100]", "{}"]
)
def test_tables_that_nobody_has_are_refused_where_a_data_sheet_names_them(tmp_path: Path, name: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(SHEET + name)
    with pytest.raises(UserError, match=r"mine.yaml: tables is .*bundled: a100, b200, .*use null to price by formula"):
        Gpu.load(str(path))


def test_tables_that_nobody_has_are_refused_where_a_change_names_them() -> None:
    with pytest.raises(UserError, match=r"gpu.tables of h100 is 'a10': no kernel tables with this name"):
        Gpu.load("h100:tables=a10")


def test_a_data_sheet_may_name_bundled_tables_or_none(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    for text, tables in (("h100", "h100"), ("null", None), ("", None)):
        path.write_text(SHEET + text)
        assert Gpu.load(str(path)).tables == tables
    assert Gpu.load("h100:tables=none").tables is None


@pytest.mark.parametrize(
    ("now", "then", "told"),
    [
        ("bandwidth: 1.0e+12", "bandwidth: 0", "'bandwidth' is 0.0 but must be a finite number above 0"),
        ("bandwidth: 1.0e+12", "bandwidth: 100", "'bandwidth' is 100.0 but must be at least 1e"),
        ("165.0e+12", "1.0e-300", r"'flops.bf16' is 1e-300 but must be at least 1e\+06 per second"),
        ("25.3e+9", "0", "'memory_bytes' is 0 but must be a finite number above 0"),
        ("usd_per_hour: 0.4", "usd_per_hour: -1", "'usd_per_hour' is -1.0 but must be a finite number of at least 0"),
    ],
)
def test_a_rate_that_no_gpu_has_is_refused(tmp_path: Path, now: str, then: str, told: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text((SHEET + "null").replace(now, then, 1))
    with pytest.raises(UserError, match=told):
        Gpu.load(str(path))


@pytest.mark.parametrize("name", gpu_names())
def test_the_tables_a_bundled_data_sheet_names_are_there_and_measured_on_a_gpu_that_is_known(name: str) -> None:
    tables = Gpu.load(name).tables
    if tables is not None:
        assert KernelTables.load(tables).measured
        assert Gpu.load(tables).tables == tables


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
