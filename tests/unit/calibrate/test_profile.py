"""Profiles: what is measured, what is kept, and what happens when something goes wrong on the way."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import servesim
from servesim.calibrate import profile as profiling
from servesim.calibrate.journal import Journal
from servesim.calibrate.points import COARSE, HELD_OUT, Limits, Shard, points
from servesim.calibrate.profile import Options, profile
from servesim.contracts import Batch
from servesim.cost import KernelTables, build_cost_model
from servesim.errors import UserError
from servesim.hardware import Gpu, ModelSpec
from tests.support.devices import FormulaDevice, FormulaKernels

LIMITS = Limits(tokens=8192, context=32768, batch=256, kv_bytes=60 << 30)
SHARD = Shard(ModelSpec.load("llama-3.1-8b"), 1, "bf16")


def run(out: Path, device: FormulaDevice | None = None, **options: float) -> profiling.Outcome:
    device = device or FormulaDevice()
    settings = {"budget_s": 600.0, "tokens": 1024, "context": 4096, "batch": 32, **options}
    return profile(device, FormulaKernels(device), [SHARD], Options(out, **settings))


def test_every_operator_of_a_shard_is_measured_at_its_widths() -> None:
    found = points([Shard(ModelSpec.load("llama-3.1-70b"), 4, "fp8")], LIMITS)
    gemms = {(p.n, p.k, p.dtype) for p in found if p.op == "gemm"}
    assert gemms == {
        (2560, 8192, "fp8"),  # 16 query and 2 x 2 KV heads of 128
        (8192, 2048, "fp8"),
        (14336, 8192, "fp8"),
        (8192, 7168, "fp8"),
        (32064, 8192, "bf16"),
    }
    assert {(p.heads, p.kv_heads, p.head_dim) for p in found if p.pieces} == {(16, 2, 128)}
    assert {p.op for p in found if p.set == "small"} == {
        "norm", "activation", "rotary", "kv_write", "embedding", "sampler",
    }  # fmt: skip


def test_models_of_the_same_shapes_are_measured_once() -> None:
    one = points([SHARD], LIMITS)
    assert len(points([SHARD, SHARD], LIMITS)) == len(one) == len({p.key for p in one})


def test_what_matters_most_comes_first_and_what_tests_the_table_last() -> None:
    found = points([SHARD], LIMITS)
    stages = [p.stage for p in found]
    assert stages == sorted(stages)
    assert {p.set for p in found if p.stage == COARSE} >= {"gemm", "attention_decode", "attention_prefill", "small"}
    assert found[0].op == "gemm"
    assert {p.set for p in found if p.stage == HELD_OUT} == {"gemm", "attention_uneven"}


def test_grids_end_at_their_limits() -> None:
    small = Limits(tokens=64, context=256, batch=4, kv_bytes=1 << 30, mask=20_000)
    for point in points([SHARD], small):
        assert (point.m or 0) <= 64
        assert all(new <= 64 and past <= 256 for new, past in point.sequences)
        queries, keys = sum(n for n, _ in point.sequences), sum(n + p for n, p in point.sequences)
        assert queries * keys <= 20_000
    assert max(len(p.sequences) for p in points([SHARD], small) if p.op == "attention_decode") == 4


@pytest.mark.parametrize("model", ["qwen3-30b-a3b", "deepseek-v3", "gemma-3-1b"])
def test_models_that_are_not_plain_decoders_are_refused_by_name(model: str) -> None:
    with pytest.raises(UserError, match=model):
        Shard(ModelSpec.load(model), 1, "bf16")


def test_the_tables_price_steps_as_the_kernels_did(tmp_path: Path) -> None:
    run(tmp_path / "p", tokens=8192, batch=256)
    cost = build_cost_model(SHARD.model, Gpu.load("h200"), tables=tmp_path / "p")
    batch = Batch.decodes(64, 64 * 1025)
    kernels = FormulaKernels(FormulaDevice())
    layer = sum(kernels.gemm(64, n, k, "bf16").calls[0]() for n, k, _ in list(SHARD.linears().values())[:4])
    layer += kernels.attention(SHARD.heads, [(1, 1024)] * 64).calls[0]()
    small = SHARD.small()
    in_layer = ("norm", "norm", "activation", "rotary", "kv_write")
    layer += sum(kernels.rows(op, 64, small[op]).calls[0]() for op in in_layer)
    rest = sum(kernels.rows(op, 64, small[op]).calls[0]() for op in ("norm", "embedding", "sampler"))
    rest += kernels.gemm(64, 128256, 4096, "bf16").calls[0]()
    price = cost.price(batch)
    assert price.gpu_ns == pytest.approx(1e3 * (32 * layer + rest), rel=1e-6)
    assert price.shares[0] + price.shares[1] == pytest.approx(1.0)


def test_a_table_says_what_it_was_measured_on_and_how_well_it_repeats(tmp_path: Path) -> None:
    outcome = run(tmp_path / "p")
    assert outcome.measured == outcome.total
    provenance = KernelTables.load(folder=tmp_path / "p").provenance
    assert set(provenance) == set(outcome.tables)
    for entry in provenance.values():
        assert (entry["device"], entry["gpu"], entry["kernels"]) == ("NVIDIA H200", "h200", "formula")
        assert entry["driver"] == "580"
        assert entry["relative_error"] == 0.0
        assert entry["repeats"] == len(Journal.load(tmp_path / "p").repeats) > 10
        assert entry["runs"][0]["models"] == ["llama-3.1-8b tp1 bf16"]
    table = pq.read_table(tmp_path / "p" / "measured-gemm.parquet")
    assert set(table["samples"].to_pylist()) == {10}
    assert table["p10_us"].to_pylist() == table["time_us"].to_pylist()


def test_points_off_the_grid_are_kept_out_of_the_tables(tmp_path: Path) -> None:
    run(tmp_path / "p")
    tokens = set(KernelTables.load(folder=tmp_path / "p").rows("gemm", "bf16")["m"].tolist())
    assert 256 in tokens
    assert 37 not in tokens
    assert any(m.point.m == 37 for m in Journal.load(tmp_path / "p").grid.values())


def test_a_simulation_runs_on_a_profile(tmp_path: Path) -> None:
    run(tmp_path / "p")
    result = servesim.simulate(
        trace="synth:rate=5,prompt=256,output=16",
        requests=20,
        model="llama-3.1-8b",
        gpu="h200",
        kernel_tables=str(tmp_path / "p"),
    )
    assert result.summary["cost_shares"]["measured"] + result.summary["cost_shares"]["interpolated"] > 0.9


def test_a_profile_cut_off_after_its_first_pass_prices_every_step(tmp_path: Path) -> None:
    device = FormulaDevice()
    found = points([SHARD], LIMITS)
    coarse = sum(p.stage == COARSE for p in found)

    def spend(timed: int) -> None:
        if timed > coarse:
            raise KeyboardInterrupt

    device.on_time = spend
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "p", device, tokens=8192, context=32768, batch=256)
    cost = build_cost_model(SHARD.model, Gpu.load("h200"), tables=tmp_path / "p")
    shares = cost.price(Batch(40, [(8, 100)], decode_count=32, decode_context_sum=32 * 700, sampled=33)).shares
    assert shares[3] < 0.01  # nothing by formula


def test_an_interrupted_profile_goes_on_where_it_was(tmp_path: Path) -> None:
    device = FormulaDevice()

    def interrupt(timed: int) -> None:
        if timed == 100:
            raise KeyboardInterrupt

    device.on_time = interrupt
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "p", device)
    kept = len(Journal.load(tmp_path / "p").grid)
    assert kept == 99
    assert sum(pq.read_metadata(f).num_rows for f in (tmp_path / "p").glob("*.parquet")) == kept
    device.on_time = lambda timed: None
    outcome = run(tmp_path / "p", device)
    assert outcome.measured == outcome.total
    assert device.timed == 100 + outcome.total - kept + len(Journal.load(tmp_path / "p").repeats)


def test_a_line_cut_off_in_the_middle_costs_one_point(tmp_path: Path) -> None:
    run(tmp_path / "p")
    path = tmp_path / "p" / "points.jsonl"
    before = len(Journal.load(tmp_path / "p").grid)
    lines = [line for line in path.read_text().splitlines() if '"repeat": false' in line]
    path.write_text("\n".join(lines)[:-20])
    assert len(Journal.load(tmp_path / "p").grid) == before - 1


def test_a_budget_of_nothing_measures_nothing_and_says_what_is_left(tmp_path: Path) -> None:
    outcome = run(tmp_path / "p", budget_s=1e-9)
    assert (outcome.measured, outcome.tables) == (0, {})
    assert outcome.total > 100


def test_what_does_not_fit_into_memory_is_skipped_and_counted(tmp_path: Path) -> None:
    device = FormulaDevice()
    kernels = FormulaKernels(device)
    kernels.lost = {"sampler"}
    outcome = profile(device, kernels, [SHARD], Options(tmp_path / "p", 600.0, None, 64, 256, 4))
    assert list(outcome.skipped) == ["out of memory"]
    assert outcome.measured + outcome.skipped["out of memory"] == outcome.total


def test_an_error_of_the_gpu_ends_the_run_and_the_next_one_leaves_that_point_out(tmp_path: Path) -> None:
    device = FormulaDevice()

    def fault(timed: int) -> None:
        if timed == 50:
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with ...")

    device.on_time = fault
    with pytest.raises(UserError, match=r"CUDA error: an illegal memory access .* to continue without this point"):
        run(tmp_path / "p", device)
    assert len(Journal.load(tmp_path / "p").grid) == 49
    device.on_time = lambda timed: None
    outcome = run(tmp_path / "p", device)
    assert outcome.measured == outcome.total - 1
    assert list(outcome.skipped.values()) == [1]


def test_too_little_gpu_memory_is_said_before_anything_is_measured(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has 1\.0 GiB free, but the largest linear layer needs 2\.9 GiB.*--tp"):
        run(tmp_path / "p", FormulaDevice(memory=1 << 30))
    assert not (tmp_path / "p").exists()


def test_times_made_while_the_clock_drifted_are_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "CHECK_S", 0.0)
    monkeypatch.setattr(Journal, "save_tables", lambda *_, **__: None)  # at every check; points are kept as they come
    device = FormulaDevice()

    def throttle(timed: int) -> None:
        device.slower = 1.2 if 50 <= timed < 60 else 1.0

    device.on_time = throttle
    outcome = run(tmp_path / "p", device)
    assert outcome.drift == pytest.approx(0.2)
    grid = Journal.load(tmp_path / "p").grid
    assert not any(m.suspect for m in grid.values())
    run(tmp_path / "q")
    steady = Journal.load(tmp_path / "q").grid
    assert {k: m.timing.median_us for k, m in grid.items()} == {k: m.timing.median_us for k, m in steady.items()}
    lines = [json.loads(line) for line in (tmp_path / "p" / "points.jsonl").read_text().splitlines()]
    assert sum(line["suspect"] for line in lines) >= 10  # nothing was thrown away


def test_a_folder_of_another_device_is_left_alone(tmp_path: Path) -> None:
    run(tmp_path / "p")
    before = (tmp_path / "p" / "points.jsonl").read_text()
    with pytest.raises(UserError, match="profile of device NVIDIA H200, not NVIDIA L40S"):
        run(tmp_path / "p", FormulaDevice("NVIDIA L40S"))
    assert (tmp_path / "p" / "points.jsonl").read_text() == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(UserError, match="contains other files but no profile"):
        run(tmp_path / "mine")


def test_a_device_servesim_does_not_know_gets_a_data_sheet(tmp_path: Path) -> None:
    run(tmp_path / "p", FormulaDevice("NVIDIA Z9", memory=100 << 30))
    gpu = Gpu.load(str(tmp_path / "p" / "device.yaml"))
    assert (gpu.name, gpu.memory_bytes, gpu.bandwidth, gpu.tables) == ("device", 100 << 30, 4.3e12, None)
    assert 1e14 < gpu.flops["bf16"] < 989e12
    run(tmp_path / "known")
    assert not (tmp_path / "known" / "device.yaml").exists()


def test_a_data_sheet_with_a_wrong_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("bandwith: 1\n")
    with pytest.raises(UserError, match=r"'bandwith' is unknown; 'bandwidth' is missing"):
        Gpu.load(str(tmp_path / "x.yaml"))
    with pytest.raises(UserError, match="No such file"):
        Gpu.load(str(tmp_path / "y.yaml"))


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed here")
def test_without_torch_the_command_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import sys

    from servesim.cli import app as cli

    sys.argv = ["servesim", "calibrate", "profile", "--model", "tiny-llama", "--out", "nowhere"]
    assert cli._guarded() == 2
    assert "pip install 'servesim[calibrate]'" in capfd.readouterr().err
