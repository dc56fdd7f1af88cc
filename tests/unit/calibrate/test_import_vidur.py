"""Vidur's CSVs as kernel tables, on hand-made profiles."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from servesim.calibrate.importers.vidur import import_vidur
from servesim.cli.app import app
from servesim.cost import KernelTables
from servesim.errors import UserError

MEDIANS = {  # milliseconds at 8 tokens on one GPU
    "attn_pre_proj": 0.030,
    "attn_post_proj": 0.020,
    "mlp_up_proj": 0.080,
    "mlp_down_proj": 0.040,
    "input_layernorm": 0.004,
    "post_attention_layernorm": 0.006,
    "add": 0.002,
    "mlp_act": 0.003,
    "attn_rope": 0.005,
    "emb": 0.001,
}
WIDTHS = {"n_head": 32, "n_kv_head": 8, "n_embd": 4096, "n_expanded_embd": 14336, "vocab_size": 128256}
ATTENTION = "n_embd,n_q_head,n_kv_head,num_tensor_parallel_workers,attention_backend"


def _csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([",".join(header), *(",".join(map(str, row)) for row in rows)]) + "\n")


def _mlp(folder: Path, tps: Sequence[int] = (1, 4), factor: float = 1.0) -> None:
    header = [f"time_stats.{name}.median" for name in MEDIANS]
    header += [*WIDTHS, "use_gated_mlp", "num_tokens", "num_tensor_parallel_workers"]
    times = {m: [ms * factor * m / 8 for ms in MEDIANS.values()] for m in (8, 16)}
    _csv(folder / "mlp.csv", header, [[*times[m], *WIDTHS.values(), True, m, tp] for tp in tps for m in times])


def _attention(folder: Path, rows: Sequence[Sequence[object]]) -> None:
    header = ["time_stats.attn_prefill.median", "time_stats.attn_decode.median", "batch_size", "prefill_chunk_size"]
    header += ["kv_cache_size", "is_prefill", *ATTENTION.split(",")]
    _csv(folder / "attention_tp2.csv", header, [(*row, 8192, 64, 8, 2, "Backend.FLASH") for row in rows])


@pytest.fixture
def profiles(tmp_path: Path) -> Path:
    root = tmp_path / "profiling"
    model = root / "compute" / "x1" / "maker" / "Model-8B"
    _mlp(model)
    decodes = [("", 0.030, 4, 0, 96, False), ("", 0.050, 4, 0, 128, False)]
    _attention(model, [*decodes, (0.040, "", 1, 256, 0, True), (0.060, "", 1, 256, 512, True)])
    _mlp(root / "compute" / "x2" / "maker" / "Model-8B", factor=0.5)
    header = ["time_stats.all_reduce.median", "num_workers", "devices_per_node", "size"]
    _csv(root / "network" / "x1_dgx" / "all_reduce.csv", header, [(0.01, 2, 2, 2048), (0.09, 2, 1, 2048)])
    _csv(root / "network" / "x1_pairs" / "all_reduce.csv", header, [(0.05, 2, 2, 2048)])
    return root


def test_projections_have_the_widths_of_their_shard_of_the_model(profiles: Path, tmp_path: Path) -> None:
    assert import_vidur(profiles, tmp_path / "out", "x1") == {
        "gemm.parquet": 16,
        "small.parquet": 12,
        "attention.parquet": 4,
        "comm.parquet": 1,
    }
    rows = KernelTables.load(folder=tmp_path / "out").rows("gemm", "bf16")
    at = {(m, n, k): t for m, n, k, t in zip(*(rows[c].tolist() for c in ("m", "n", "k", "time_us")), strict=True)}
    assert {(n, k) for m, n, k in at if m == 8} == {
        *((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)),
        *((1536, 4096), (4096, 1024), (7168, 4096), (4096, 3584)),
    }
    assert (at[8, 28672, 4096], at[16, 4096, 3584]) == pytest.approx((80.0, 80.0))


def test_a_norm_holds_its_residual_addition_and_repeats_become_their_median(profiles: Path, tmp_path: Path) -> None:
    import_vidur(profiles, tmp_path / "out", "x1")
    rows = KernelTables.load(folder=tmp_path / "out").rows("norm", "bf16")
    assert rows["time_us"].tolist() == pytest.approx([7.0, 14.0])  # of 4 + 2 and 6 + 2, at both degrees


def test_the_repeat_error_is_the_spread_of_what_was_measured_alike(tmp_path: Path) -> None:
    for name, factor in (("one", 1.0), ("two", 1.1)):
        _mlp(tmp_path / "compute" / "x1" / "maker" / name, (1, 2, 4), factor)
    import_vidur(tmp_path, tmp_path / "out", "x1")
    stated = KernelTables.load(folder=tmp_path / "out").provenance["gemm.parquet"]["relative_error"]
    assert stated == pytest.approx(0.0953102 / 2**0.5, abs=1e-5)  # ln 1.1: of each pair, one degree of freedom


def test_too_few_repeats_state_no_error(profiles: Path, tmp_path: Path) -> None:
    import_vidur(profiles, tmp_path / "out", "x1")
    assert "relative_error" not in KernelTables.load(folder=tmp_path / "out").provenance["attention.parquet"]


def test_decodes_and_prompts_carry_heads_and_cached_tokens(profiles: Path, tmp_path: Path) -> None:
    import_vidur(profiles, tmp_path / "out", "x1")
    tables = KernelTables.load(folder=tmp_path / "out")
    decode, prefill = tables.rows("attention_decode", "bf16"), tables.rows("attention_prefill", "bf16")
    assert (decode["past_tokens"].tolist(), decode["time_us"].tolist()) == ([96, 128], [30.0, 50.0])
    assert {(h, k, d) for h, k, d in zip(decode["heads"], decode["kv_heads"], decode["head_dim"], strict=True)} == {
        (32, 4, 128)
    }
    assert (prefill["new_tokens"].tolist(), prefill["past_tokens"].tolist()) == ([256, 256], [0, 512])
    entry = tables.provenance["attention.parquet"]
    assert (entry["licence"], entry["device"]) == ("MIT", "x1")
    assert entry["sources"] == ["compute/x1/maker/Model-8B/attention_tp2.csv"]


def test_all_reduce_is_that_of_one_server_and_of_the_network_named(profiles: Path, tmp_path: Path) -> None:
    for network, time in ((None, 10.0), ("x1_pairs", 50.0)):
        import_vidur(profiles, tmp_path / "out", "x1", network)
        assert KernelTables.load(folder=tmp_path / "out").rows("all_reduce", "bf16")["time_us"].tolist() == [time]


def test_a_folder_of_one_model_needs_no_name(profiles: Path, tmp_path: Path) -> None:
    folder = profiles / "compute" / "x2" / "maker" / "Model-8B"
    assert set(import_vidur(folder, tmp_path / "out")) == {"gemm.parquet", "small.parquet"}
    assert KernelTables.load(folder=tmp_path / "out").provenance["gemm.parquet"]["device"] == "x2"


def test_what_cannot_be_imported_is_named(profiles: Path, tmp_path: Path) -> None:
    out, model = tmp_path / "out", profiles / "compute" / "x1" / "maker" / "Model-8B"
    with pytest.raises(UserError, match="several GPUs; choose one: x1, x2"):
        import_vidur(profiles, out)
    with pytest.raises(UserError, match="no profile of GPU 'x3'"):
        import_vidur(profiles, out, "x3")
    with pytest.raises(UserError, match="no such folder"):
        import_vidur(tmp_path / "nowhere", out)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="contains no Vidur profile"):
        import_vidur(tmp_path / "empty", out)
    _attention(model, [("", "", 4, 0, 96, False)])
    with pytest.raises(UserError, match=r"attention_tp2.csv: row 1: the time of its phase is missing"):
        import_vidur(profiles, out, "x1")
    _attention(model, [("", -1, 4, 0, 96, False)])
    with pytest.raises(UserError, match=r"row 1: time_stats.attn_decode.median is -1 but must be a number above 0"):
        import_vidur(profiles, out, "x1")
    assert not out.exists()


def test_the_command_says_what_it_wrote(profiles: Path, tmp_path: Path) -> None:
    args = ["calibrate", "import", "vidur", str(profiles), "--gpu", "x1", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, args)
    assert result.exit_code == 0
    assert "attention.parquet: 4 rows" in result.stdout
