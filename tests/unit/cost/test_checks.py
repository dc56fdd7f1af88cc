"""Tables that must not be priced from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from servesim.cost import KernelTables
from servesim.cost.attention import TableAttention
from servesim.cost.checks import checked
from servesim.cost.grid import HeadShape
from servesim.cost.tables import KEY_COLUMNS, write_table
from servesim.errors import UserError
from servesim.hardware import Gpu, gpu_names

SHIPPED = sorted({tables for name in gpu_names() if (tables := Gpu.load(name).tables) is not None})


def gemms(path: Path, times: list[float], m: list[int] | None = None) -> KernelTables:
    """A folder with GEMMs of 4096 x 4096; 1 token takes about 10 us on an H100."""
    count = len(times)
    columns: dict[str, Any] = {"op": ["gemm"] * count, "dtype": ["bf16"] * count, "time_us": times}
    columns |= {"m": m or list(range(1, count + 1)), "n": [4096] * count, "k": [4096] * count}
    write_table(path / "gemm.parquet", columns, {})
    return KernelTables.load(folder=path)


@pytest.mark.parametrize(
    ("times", "what"),
    [
        ([10.0, -1.0, 10.0], r"gemm.parquet: row 2: time_us is -1 but must be a number above 0"),
        ([10.0, 10.0, float("nan")], r"row 3: time_us is nan"),
        ([0.0], r"row 1: time_us is 0"),
        ([0.012, 0.010, 0.011], r"row 2: time_us is 0\.01: no kernel is that fast \(are the times in milliseconds\?\)"),
    ],
)
def test_times_that_are_none_are_refused_with_file_and_row(times: list[float], what: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=what):
        gemms(tmp_path, times).rows("gemm", "bf16")


def test_times_wrong_by_a_thousand_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UserError,
        match=r"row 1: 1e\+18 FLOP/s exceeds the peak of any GPU \(are the times in "
        "milliseconds",
    ):
        gemms(tmp_path, [0.88], [32_768]).rows("gemm", "bf16")
    with pytest.raises(UserError, match="are the times in nanoseconds"):
        gemms(tmp_path, [880_000.0], [1]).rows("gemm", "bf16")


def test_rows_of_one_shape_must_agree(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"row 2: other rows of this shape disagree \(10 to 20 us\)"):
        gemms(tmp_path, [5.0, 10.0, 20.0], [1, 2, 2]).rows("gemm", "bf16")
    rows = gemms(tmp_path, [5.0, 10.0, 10.1], [1, 2, 2]).rows("gemm", "bf16")
    assert (rows["m"].tolist(), rows["time_us"].tolist()) == ([1, 2], [5.0, 10.0])


def test_a_missing_column_and_a_damaged_file_are_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"op": ["gemm"], "dtype": ["bf16"], "time_us": [1.0]}), tmp_path / "gemm.parquet")
    with pytest.raises(UserError, match=r"gemm\.parquet: column 'm' is missing"):
        KernelTables.load(folder=tmp_path).rows("gemm", "bf16")
    (tmp_path / "gemm.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(UserError, match="not a readable Parquet file"):
        KernelTables.load(folder=tmp_path).rows("gemm", "bf16")


@pytest.mark.medium
@pytest.mark.parametrize("gpu", SHIPPED)
def test_shipped_tables_pass(gpu: str) -> None:
    for path in sorted(KernelTables.load(gpu).folder.glob("*.parquet")):
        table = pq.read_table(path)
        assert len(checked(path, table, KEY_COLUMNS)) == len(table)


def test_heads_no_table_holds_are_priced_from_the_nearest(tmp_path: Path) -> None:
    shipped = KernelTables.load("a100")
    for op in ("attention_decode", "attention_prefill"):
        rows = shipped.rows(op, "bf16")
        only = rows["kv_heads"] == 8
        columns: dict[str, Any] = {name: column[only] for name, column in rows.items()}
        count = int(only.sum())
        write_table(tmp_path / f"{op}.parquet", {**columns, "op": [op] * count, "dtype": ["bf16"] * count}, {})
    tables = KernelTables.load(folder=tmp_path)
    half = TableAttention(tables, HeadShape(16, 4, 128), "bf16").decode(16)
    assert half.at(1024) == TableAttention(tables, HeadShape(32, 8, 128), "bf16").decode(8).at(1024)
