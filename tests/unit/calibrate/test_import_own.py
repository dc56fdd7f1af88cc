"""Times of one's own, from CSV files to priced steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from servesim.calibrate.importers.own import NEEDED, import_csv
from servesim.cli.app import app
from servesim.cost.tables import COLUMNS, KernelTables
from servesim.errors import UserError


def written(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_rows_are_those_of_the_file_and_repeats_their_median(tmp_path: Path) -> None:
    file = written(
        tmp_path / "g.csv", "k,m,n,time_us,who", "4096,1,6144,21,a", "4096,1,6144,20,b", "4096,1,6144,25,c",
        "4096,8,6144,30,d",
    )  # fmt: skip
    assert import_csv(file, "gemm", tmp_path / "out", "bf16", "mine") == {"gemm.parquet": 2}
    tables = KernelTables.load(folder=tmp_path / "out")
    rows = tables.rows("gemm", "bf16")
    assert [rows[name].tolist() for name in ("m", "n", "k", "time_us")] == [
        [1, 8], [6144, 6144], [4096, 4096], [21.0, 30.0],
    ]  # fmt: skip
    assert tables.relative_error is None, "two repeats beyond the first say little"


def test_twenty_repeats_beyond_the_first_have_a_spread(tmp_path: Path) -> None:
    """Half of the times e^0.01 more than the geometric mean, half as much less."""
    times = [100 * 1.01005017 if i % 2 else 100 / 1.01005017 for i in range(22)]
    file = written(tmp_path / "g.csv", "m,n,k,time_us", *(f"1,64,64,{us}" for us in times))
    import_csv(file, "gemm", tmp_path, "bf16", "mine")
    spread = KernelTables.load(folder=tmp_path).relative_error
    assert spread == pytest.approx(0.01 * (22 / 21) ** 0.5, rel=1e-3)


def test_formats_and_kernels_may_be_columns(tmp_path: Path) -> None:
    file = written(
        tmp_path / "a.csv", "batch,past_tokens,heads,kv_heads,head_dim,dtype,kernel,time_us",
        "4,1000,32,8,128,fp8,mine,12", "4,0,32,8,128,,mine,3",
    )  # fmt: skip
    import_csv(file, "attention_decode", tmp_path, "bf16", "mine")
    tables = KernelTables.load(folder=tmp_path)
    assert tables.rows("attention_decode", "fp8")["time_us"].tolist() == [12.0]
    plain = tables.rows("attention_decode", "bf16")
    assert (plain["past_tokens"].tolist(), plain["new_tokens"].tolist()) == ([0], [1])


def test_every_operator_has_columns_of_the_schema() -> None:
    assert {name for names in NEEDED.values() for name in names} <= set(COLUMNS)


@pytest.mark.parametrize(
    ("lines", "op", "says"),
    [
        (["m,n", "1,2"], "gemm", "columns 'time_us', 'k' are missing"),
        (["m,n,time_us", "1,2,3"], "gemm", "column 'k' is missing"),
        (["m,n,k,time_us", "1,2,3,0"], "gemm", "row 1: time_us is 0 but must be a number above 0"),
        (["m,n,k,time_us", "1,2,3,4", "0,2,3,4"], "gemm", "row 2: m is 0 but must be at least 1"),
        (["m,n,k,time_us"], "gemm", "contains no rows"),
        (["m,n,k,time_us", "1,2,3,4"], "gem", 'no such operator (did you mean "gemm"?)'),
    ],
)
def test_bad_files_are_one_line_and_nothing_is_written(lines: list[str], op: str, says: str, tmp_path: Path) -> None:
    file = written(tmp_path / "bad.csv", *lines)
    with pytest.raises(UserError) as error:
        import_csv(file, op, tmp_path / "out", "bf16", "mine")
    assert says in str(error.value)
    assert not (tmp_path / "out").exists()


def test_the_command_says_what_it_wrote(tmp_path: Path) -> None:
    file = written(tmp_path / "n.csv", "m,n,time_us", "1,4096,3.5")
    done = CliRunner().invoke(app, ["calibrate", "import", "csv", str(file), "--op", "norm", "--out", str(tmp_path)])
    assert (done.exit_code, done.output) == (0, f"{tmp_path / 'norm.parquet'}: 1 rows\n")
