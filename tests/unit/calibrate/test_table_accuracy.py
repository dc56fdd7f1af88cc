"""Held-out errors of kernel tables: what is left out, and that it is priced the way a run is."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from servesim.calibrate.accuracy import SPLITS, accuracy, held_out, open_tables
from servesim.calibrate.lookup import lookup
from servesim.cli.app import app
from servesim.cli.schema import schema_of
from servesim.contracts.cost import Batch
from servesim.cost import KernelTables, build_cost_model
from servesim.cost.tables import write_table
from servesim.errors import UserError
from servesim.hardware import Gpu, ModelSpec

H100 = Gpu.load("h100")


def linear(path: Path, tokens: list[int], curved: bool = False) -> KernelTables:
    """GEMMs of four widths whose time is 10 us and 0.1 us a token, or grows with its square."""
    widths = [(n, 1024) for n in (1024, 2048, 4096, 8192)]
    rows = [(m, n, k, 10.0 + 0.1 * m + (m * m / 100 if curved else 0)) for n, k in widths for m in tokens]
    columns: dict[str, Any] = dict(zip(("m", "n", "k", "time_us"), map(list, zip(*rows, strict=True)), strict=True))
    write_table(path / "gemm.parquet", columns | {"op": ["gemm"] * len(rows), "dtype": ["bf16"] * len(rows)}, {})
    return KernelTables.load(folder=path)


def test_a_fifth_is_held_out_whatever_the_order_of_the_rows() -> None:
    rows = KernelTables.load("a100").rows("gemm", "bf16")
    order = np.random.default_rng(1).permutation(len(rows["m"]))
    held = held_out("gemm", rows, "random")
    assert held.mean() == pytest.approx(0.2, abs=0.02)
    assert (held_out("gemm", {name: column[order] for name, column in rows.items()}, "random") == held[order]).all()


def test_curves_are_held_out_whole() -> None:
    rows = KernelTables.load("a100").rows("attention_decode", "bf16")
    held = held_out("attention_decode", rows, "curves")
    keys = list(zip(*(rows[c].tolist() for c in ("batch", "heads", "kv_heads", "head_dim")), strict=True))
    left = {key for key, out in zip(keys, held.tolist(), strict=True) if out}
    assert 0.1 < len(left) / len(set(keys)) < 0.3
    assert not left & {key for key, out in zip(keys, held.tolist(), strict=True) if not out}


@pytest.mark.parametrize(
    ("split", "left"),
    [("every 2nd", [2, 8, 32, 128]), ("every 4th", [2, 4, 8, 32, 64, 128]), ("largest", [256])],
)
def test_thinning_keeps_the_ends_and_the_largest_is_beyond_them(split: str, left: list[int], tmp_path: Path) -> None:
    tables = linear(tmp_path, [1, 2, 4, 8, 16, 32, 64, 128, 256])
    rows = tables.rows("gemm", "bf16")
    assert rows["m"][held_out("gemm", rows, split) & (rows["n"] == 4096)].tolist() == left


def test_straight_lines_are_found_again_and_bends_are_overestimated(tmp_path: Path) -> None:
    tokens = [16, 32, 48, 64, 80, 96, 112, 128]
    for curved in (False, True):
        tables = linear(tmp_path / str(curved), tokens, curved)
        (found,) = (e for e in accuracy(tables, H100) if e.split == "every 2nd")
        assert (found.rows, found.held_out) == (32, 12)
        if curved:  # of a parabola, its half step squared / 100 too much
            errors = [16 * 16 / 100 / (10.0 + 0.1 * m + m * m / 100) for m in (32, 64, 96)]
            assert found.mean == found.bias == pytest.approx(np.mean(errors))
            assert found.median == pytest.approx(np.median(errors))
        else:
            assert found.p95 == pytest.approx(0.0, abs=1e-9)


@pytest.mark.medium
@pytest.mark.parametrize("gpu", ["a100", "h200"])
def test_rows_that_are_kept_are_looked_up_as_measured(gpu: str) -> None:
    tables = KernelTables.load(gpu)
    for op, dtype in tables.measured:
        every = tables.rows(op, dtype)
        # sparse attention leaves out prompts that took as long for 1 sequence as for 1,024
        kept = every["new_tokens"] > 2048 if op == "dsa_prefill" else every["time_us"] > 0
        rows = {name: column[kept][::97] for name, column in every.items()}
        times = lookup(tables, Gpu.load(gpu), op, dtype, rows)
        # rounded to the nanosecond; what is beside MLA modules and kernels is taken off and added again; an exchange
        # of more tokens takes no less, whatever its rows say
        rel = 0.2 if op.startswith(("mla", "dsa", "all_to_all")) else 1e-9
        assert times == pytest.approx(rows["time_us"] * 1e3, abs=1.0, rel=rel), op


def test_a_call_looked_up_is_priced_as_the_cost_model_prices_it() -> None:
    call = {"batch": 7, "new_tokens": 1, "past_tokens": 999, "heads": 32, "kv_heads": 8, "head_dim": 128}
    rows = {name: np.array([value]) for name, value in call.items()}
    model = build_cost_model(ModelSpec.load("llama-3.1-8b"), H100)
    batch = Batch.decodes(7, 7000)
    alone = model.price(batch).ns - model.price(Batch(7, sampled=7)).ns
    found = lookup(KernelTables.load("h100"), H100, "attention_decode", "bf16", rows)
    assert 32 * found[0] == pytest.approx(alone, 2e-3)


def test_the_command_prints_every_split_and_writes_json(tmp_path: Path) -> None:
    linear(tmp_path / "tables", [1, 2, 4, 8, 16, 32, 64, 128, 256])
    args = ["calibrate", "accuracy", str(tmp_path / "tables"), "--gpu", "h100", "--json", str(tmp_path / "errors.json")]
    result = CliRunner().invoke(app, args)
    assert result.exit_code == 0
    written = json.loads((tmp_path / "errors.json").read_text())
    pytest.importorskip("jsonschema").validate(written, schema_of("calibrate left-out"))
    assert written["gpu"] == "h100"
    assert {e["split"] for e in written["errors"]} <= set(SPLITS)
    assert all(e["split"] in result.stdout for e in written["errors"])
    assert "gemm bf16" in result.stdout


def test_tables_that_cannot_be_opened_are_named(tmp_path: Path) -> None:
    linear(tmp_path, [1, 2])
    with pytest.raises(UserError, match=r"h10 is neither a folder nor the name of shipped tables \(did you mean"):
        open_tables("h10")
    with pytest.raises(UserError, match="do not specify the measured GPU: add --gpu"):
        open_tables(str(tmp_path))
    with pytest.raises(UserError, match="is a file: specify its folder"):
        open_tables(str(tmp_path / "gemm.parquet"))
    with pytest.raises(UserError, match="unknown GPU 'h10'"):
        open_tables(str(tmp_path), "h10")


def test_a_gpu_is_known_by_what_its_tables_say(tmp_path: Path) -> None:
    columns: dict[str, Any] = {"op": ["gemm"], "dtype": ["bf16"], "m": [1], "n": [64], "k": [64], "time_us": [5.0]}
    write_table(tmp_path / "gemm.parquet", columns, {"device": "RTXPRO6000"})
    assert open_tables(str(tmp_path))[1].name == "rtx-pro-6000"
    assert open_tables("a100")[1].name == "a100"


def test_a_profile_of_one_s_own_brings_its_data_sheet(tmp_path: Path) -> None:
    linear(tmp_path, [1, 2, 4, 8, 16, 32])
    sheet = {f.name: getattr(H100, f.name) for f in dataclasses.fields(Gpu) if f.name != "name"}
    (tmp_path / "device.yaml").write_text(yaml.safe_dump({**sheet, "bandwidth": 1e11}))
    tables, gpu = open_tables(str(tmp_path))
    assert gpu.bandwidth == 1e11
    assert {e.operator for e in accuracy(tables, gpu)} == {"gemm"}
