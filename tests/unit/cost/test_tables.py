"""Kernel tables: shipped files, their provenance, and the importer they come from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from servesim.calibrate.importers.aiconfigurator import import_aiconfigurator
from servesim.cost import KernelTables
from servesim.cost.tables import write_table
from servesim.errors import UserError
from servesim.hardware import Gpu, gpu_names

SHIPPED = sorted({tables for name in gpu_names() if (tables := Gpu.load(name).tables) is not None})


@pytest.mark.parametrize("gpu", SHIPPED)
def test_shipped_tables_say_where_they_come_from(gpu: str) -> None:
    provenance = KernelTables.load(gpu).provenance
    assert set(provenance) >= {"attention.parquet", "comm.parquet", "gemm.parquet", "moe.parquet"}
    for entry in provenance.values():
        assert (entry["project"], entry["licence"]) == ("aiconfigurator-core", "Apache-2.0")
        assert entry["not_measured"]
        assert entry["sources"]


@pytest.mark.parametrize("gpu", SHIPPED)
def test_shipped_tables_hold_what_a_dense_decoder_needs(gpu: str) -> None:
    tables = KernelTables.load(gpu)
    for op in ("gemm", "attention_prefill", "attention_decode", "all_reduce", "all_gather"):
        rows = tables.rows(op, "bf16")
        assert rows["time_us"].min() > 0
    of_nodes = {"gb200": {2, 4}, "gb300": {2, 4, 8, 16}}
    assert set(tables.rows("all_reduce", "bf16")["gpus"].tolist()) == of_nodes.get(gpu, {2, 4, 8})
    assert {"fp8", "fp8_block"} <= set(tables.dtypes("gemm")) or gpu == "a100"


def test_integer_gemms_name_the_framework_they_were_measured_with() -> None:
    assert {"int4", "int8", "int8_wo"} <= set(KernelTables.load("a100").dtypes("gemm"))
    sources = KernelTables.load("a100").provenance["gemm_integer.parquet"]["sources"]
    assert {source["framework"] for source in sources} == {"trtllm"}
    assert "int4" not in KernelTables.load("h100").dtypes("gemm")


def test_shipped_tables_hold_what_mixtures_windows_and_latent_attention_need() -> None:
    for gpu in ("h100", "h200"):
        tables = KernelTables.load(gpu)
        assert {"bf16", "fp8", "fp8_block", "mxfp4"} <= set(tables.dtypes("moe"))
        assert set(tables.rows("window_decode", "bf16")["window"].tolist()) == {128, 1024, 8192}
        assert tables.rows("mla_decode", "bf16")["heads"].max() == 128


@pytest.mark.parametrize("name", ["b200", "b200-sglang", "b200-trtllm", "b300", "b300-sglang", "gb200", "gb300"])
def test_tables_of_blackwell_hold_its_formats(name: str) -> None:
    tables = KernelTables.load(name)
    assert {"bf16", "fp8", "fp8_block", "nvfp4"} <= set(tables.dtypes("gemm"))
    assert {"bf16", "fp8_block", "nvfp4", "mxfp4", "mxfp4_mxfp8"} <= set(tables.dtypes("moe"))
    assert 2880 in tables.rows("moe", "mxfp4_mxfp8")["k"]  # gpt-oss, whichever framework timed it


def test_shipped_tables_are_small_and_carry_their_licence() -> None:
    folder = KernelTables.load("h100").folder.parent
    assert sum(p.stat().st_size for p in folder.rglob("*.parquet")) < 17_250_000
    assert "Apache License, Version 2.0" in (folder / "LICENSE.aiconfigurator").read_text()


def _write(path: Path, **columns: list[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    length = len(columns["latency"])
    columns |= {"version": [path.parent.name] * length, "device": ["X1"] * length}
    pq.write_table(pa.table(columns), path)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package of the layout with one shape of each table, and traps: repeats, windows, other formats."""
    data = tmp_path / "aisimulate_core" / "systems" / "data" / "x1"
    gemm: dict[str, list[Any]] = {
        "m": [1, 1, 1, 1],
        "n": [64] * 4,
        "k": [32] * 4,
        "kernel_source": ["a", "a", "a", "b"],
    }
    _write(
        data / "gemm" / "vllm" / "0.10.0" / "gemm_perf.parquet",
        **gemm,
        gemm_dtype=["bfloat16", "bfloat16", "bfloat16", "fp8_block"],
        latency=[0.001, 0.002, 0.009, 0.004],
    )
    _write(
        data / "gemm" / "vllm" / "0.9.0" / "gemm_perf.parquet",
        **gemm,
        gemm_dtype=["bfloat16"] * 4,
        latency=[1.0] * 4,
    )
    _write(
        data / "gemm" / "trtllm" / "1.0.0" / "gemm_perf.parquet",
        m=[1, 1],
        n=[64, 64],
        k=[32, 32],
        kernel_source=["c", "c"],
        gemm_dtype=["int4_wo", "fp8_block"],
        latency=[0.003, 0.005],
    )
    _write(
        data / "moe" / "vllm" / "0.10.0" / "moe_perf.parquet",
        kernel_source=["d"] * 3,
        moe_dtype=["w4a16_mxfp4"] * 3,
        num_tokens=[1] * 3,
        hidden_size=[96] * 3,
        inter_size=[128] * 3,
        topk=[2] * 3,
        num_experts=[8] * 3,
        moe_tp_size=[2, 1, 2],
        moe_ep_size=[1, 2, 1],
        distribution=["power_law_1.2", "power_law_1.2", "balanced"],
        latency=[0.006, 0.007, 0.008],
    )
    attention: dict[str, list[Any]] = {
        "batch_size": [2, 2],
        "num_heads": [4, 4],
        "num_key_value_heads": [2, 2],
        "head_dim": [64, 64],
        "beam_width": [1, 1],
        "kv_cache_dtype": ["bfloat16", "bfloat16"],
        "window_size": [0, 128],
        "kernel_source": ["f", "f"],
        "latency": [0.01, 0.005],
    }
    folder = data / "attention" / "vllm" / "0.10.0"
    _write(folder / "context_attention_perf.parquet", **attention, isl=[16, 16], step=[0, 0])
    _write(folder / "generation_attention_perf.parquet", **attention, isl=[1, 1], step=[7, 7])
    _write(
        data / "comm" / "vllm" / "0.10.0" / "custom_allreduce_perf.parquet",
        kernel_source=["custom_graph", "custom_eager"],
        allreduce_dtype=["bfloat16"] * 2,
        num_gpus=[2, 2],
        message_size=[128, 128],
        latency=[0.004, 0.02],
    )
    _write(
        data / "comm" / "nccl" / "2.20" / "nccl_perf.parquet",
        op_name=["all_gather", "alltoall", "all_reduce"],
        kernel_source=["NCCL"] * 3,
        nccl_dtype=["half"] * 3,
        num_gpus=[2] * 3,
        message_size=[256] * 3,
        latency=[0.005, 0.006, 0.007],
    )
    return tmp_path


def test_the_importer_takes_the_newest_version_and_the_median_of_repeats(package: Path, tmp_path: Path) -> None:
    written = import_aiconfigurator(package, "x1", "vllm", tmp_path / "out")
    assert written == {
        "gemm.parquet": 1,
        "gemm_block.parquet": 1,
        "gemm_integer.parquet": 1,
        "moe.parquet": 2,
        "attention.parquet": 2,
        "window.parquet": 2,
        "comm.parquet": 3,
    }
    tables = KernelTables.load(folder=tmp_path / "out")
    assert tables.rows("gemm", "bf16")["time_us"].tolist() == [2.0]
    decode = tables.rows("attention_decode", "bf16")
    assert (decode["past_tokens"].tolist(), decode["time_us"].tolist()) == ([7], [10.0])
    assert tables.rows("all_reduce", "bf16")["time_us"].tolist() == [4.0]
    assert tables.rows("all_reduce_nccl", "bf16")["time_us"].tolist() == [7.0]
    assert tables.rows("gemm", "fp8") == {}
    assert tables.rows("gemm", "int4")["time_us"].tolist() == [3.0]
    assert tables.rows("gemm", "fp8_block")["time_us"].tolist() == [5.0]  # not vLLM's 4.0
    assert tables.rows("window_prefill", "bf16")["window"].tolist() == [128]
    dealt = tables.rows("moe_ep", "mxfp4")
    assert (dealt["n"].tolist(), dealt["gpus"].tolist(), dealt["time_us"].tolist()) == ([128], [2], [7.0])
    experts = tables.rows("moe", "mxfp4")
    assert (experts["n"].tolist(), experts["experts"].tolist(), experts["topk"].tolist()) == ([64], [8], [2])


def test_experts_under_mxfp8_are_another_frameworks_where_the_own_were_timed_under_bf16_alone(
    package: Path, tmp_path: Path
) -> None:
    data = package / "aisimulate_core" / "systems" / "data" / "x1"
    other: dict[str, list[Any]] = {
        "kernel_source": ["s"] * 3,
        "moe_dtype": ["w4a8_mxfp4_mxfp8", "w4a8_mxfp4_mxfp8", "w4a16_mxfp4"],
        "num_tokens": [1] * 3,
        "hidden_size": [2880, 96, 2880],
        "inter_size": [128] * 3,
        "topk": [2] * 3,
        "num_experts": [8] * 3,
        "moe_tp_size": [1] * 3,
        "moe_ep_size": [1] * 3,
        "distribution": ["power_law_1.2"] * 3,
        "latency": [0.001, 0.002, 0.003],
    }
    _write(data / "moe" / "sglang" / "0.5.0" / "moe_perf.parquet", **other)
    import_aiconfigurator(package, "x1", "vllm", tmp_path / "out")
    tables = KernelTables.load(folder=tmp_path / "out")
    rows = tables.rows("moe", "mxfp4_mxfp8")
    assert (rows["k"].tolist(), rows["time_us"].tolist()) == ([2880], [1.0])  # gpt-oss alone
    assert tables.rows("moe", "mxfp4")["k"].tolist() == [96]  # those stay the framework's own


def _experts(times: dict[int, float], kernel: str = "d", gpus: int = 1) -> dict[str, list[Any]]:
    """One shape of experts for each hidden size, with its milliseconds."""
    one = {"kernel_source": kernel, "moe_dtype": "bfloat16", "num_tokens": 1, "inter_size": 128, "topk": 2}
    same = one | {"num_experts": 8, "moe_tp_size": 1, "moe_ep_size": gpus, "distribution": "power_law_1.2"}
    columns = {name: [value] * len(times) for name, value in same.items()}
    return {**columns, "hidden_size": list(times), "latency": list(times.values())}


@pytest.fixture
def trtllm(package: Path) -> Path:
    """The package's folder of experts of TensorRT-LLM, whose other tables are vLLM's."""
    data = package / "aisimulate_core" / "systems" / "data" / "x1"
    for stem in ("gemm", "attention", "comm"):
        (data / stem / "trtllm").mkdir(exist_ok=True)
        (data / stem / "vllm" / "0.10.0").rename(data / stem / "trtllm" / "2.0.0")
    return data / "moe" / "trtllm"


def imported_experts(trtllm: Path, op: str) -> dict[int, float]:
    """Microseconds by hidden size."""
    import_aiconfigurator(trtllm.parents[5], "x1", "trtllm", trtllm / "out")
    rows = KernelTables.load(folder=trtllm / "out").rows(op, "bf16")
    return dict(zip(rows["k"].tolist(), rows["time_us"].tolist(), strict=True)) if rows else {}


def test_release_candidates_are_ordered_by_number_and_older_ones_fill_missing_shapes(trtllm: Path) -> None:
    for version, times in ("1.3.0rc9", {96: 0.009, 192: 0.008}), ("1.3.0rc20", {96: 0.005}), ("1.3.0rc23", {64: 0.001}):
        _write(trtllm / version / "moe_perf.parquet", **_experts(times))
    assert imported_experts(trtllm, "moe") == {64: 1.0, 96: 5.0, 192: 8.0}


def test_of_several_kernels_the_fastest_is_kept_and_not_their_median(trtllm: Path) -> None:
    both = [_experts({96: time}, kernel) for kernel, time in (("a", 0.009), ("b", 0.002), ("a", 0.007))]
    merged = {name: [value for one in both for value in one[name]] for name in both[0]}
    _write(trtllm / "1.3.0" / "moe_perf.parquet", **merged)
    assert imported_experts(trtllm, "moe") == {96: 2.0}


def test_rows_that_put_the_most_loaded_experts_on_one_gpu_are_left_out(trtllm: Path) -> None:
    _write(trtllm / "1.3.0rc10" / "moe_perf.parquet", **_experts({96: 0.009}, gpus=2))
    _write(trtllm / "1.3.0rc20" / "moe_perf.parquet", **_experts({64: 0.002}, gpus=2))
    assert imported_experts(trtllm, "moe_ep") == {64: 2.0}


@pytest.mark.parametrize("name", ["h100-trtllm", "h200-trtllm", "b200-trtllm", "b300-trtllm"])
def test_no_shipped_row_over_eight_gpus_takes_one_token_for_many(name: str) -> None:
    """One token's experts lie on several GPUs: over 8 of them it takes in the median about as long as with every expert
    on each GPU but an eighth of its width, whose weights are as many (rows of 1.3.0rc10: 2.4 times on an H100)."""
    tables, ratios = KernelTables.load(name), []
    for dtype in ("bf16", "fp8_block"):
        dealt, split = tables.rows("moe_ep", dtype), tables.rows("moe", dtype)
        parts = {(k, e, n): us for k, e, m, us, n in _columns(split) if m == 1}
        whole = {(k, e, n // 8): us for k, e, m, us, n, gpus in _columns(dealt, "gpus") if (m, gpus) == (1, 8)}
        ratios += [us / parts[shape] for shape, us in whole.items() if shape in parts]
    assert len(ratios) >= 8
    assert median(ratios) < 1.3


def _columns(rows: Any, *more: str) -> list[tuple[Any, ...]]:
    return list(zip(*(rows[name].tolist() for name in ("k", "experts", "m", "time_us", "n", *more)), strict=True))


def test_messages_that_a_package_counts_in_numbers_of_two_bytes_are_kept_in_bytes(
    package: Path, tmp_path: Path
) -> None:
    import_aiconfigurator(package, "x1", "vllm", tmp_path / "out")
    tables = KernelTables.load(folder=tmp_path / "out")
    sizes = {op: tables.rows(op, "bf16")["bytes"].tolist() for op in ("all_reduce", "all_gather", "all_reduce_nccl")}
    assert sizes == {"all_reduce": [256], "all_gather": [512], "all_reduce_nccl": [512]}


@pytest.mark.parametrize("gpu", ["h100", "h200"])
def test_shipped_all_reduces_leave_the_custom_kernel_at_the_size_where_vllm_does(gpu: str) -> None:
    """Messages of two GPUs below 8 MiB are the custom kernel's (vllm's custom_all_reduce.py): there the time jumps by
    more than the message grows, and nowhere else among large messages."""
    rows = KernelTables.load(gpu).rows("all_reduce", "bf16")
    mine = (rows["gpus"] == 2) & (rows["bytes"] >= 2**20) & (rows["bytes"] <= 2**24)
    times = dict(zip(rows["bytes"][mine].tolist(), rows["time_us"][mine].tolist(), strict=True))
    steps = {size: times[size] / times[size // 2] for size in sorted(times)[1:]}
    assert max(steps, key=lambda size: steps[size]) == 2**23


def test_convolution_and_recurrence_of_a_state_become_one_row_and_another_frameworks_where_there_is_none(
    package: Path, tmp_path: Path
) -> None:
    """The fastest kernel of either, in four digits; a convolution alone is no row; of Kimi delta attention SGLang's."""
    data = package / "aisimulate_core" / "systems" / "data" / "x1"
    shape: dict[str, list[Any]] = {
        "num_k_heads": [2] * 5,
        "num_v_heads": [4] * 5,
        "head_k_dim": [128] * 5,
        "phase": ["context"] * 3 + ["generation"] * 2,
        "batch_size": [3] * 5,
        "seq_len": [64] * 3 + [1, 1],
        "kernel_source": ["causal_conv1d_fn", "chunk_a", "chunk_b", "causal_conv1d_update", "fused"],
    }
    _write(data / "linear" / "sglang" / "0.5" / "gdn_perf.parquet", **shape, latency=[0.01, 0.04, 0.03, 0.001, 0.0022])
    _write(data / "kda" / "vllm" / "0.24" / "kda_perf.parquet", **shape, latency=[0.8] * 5)
    alone = {key: values[:1] for key, values in shape.items()}
    _write(data / "kda" / "sglang" / "0.5" / "kda_perf.parquet", **alone, latency=[0.01])
    import_aiconfigurator(package, "x1", "vllm", tmp_path / "out")
    tables = KernelTables.load(folder=tmp_path / "out")
    prefill, decode = tables.rows("gdn_prefill", "bf16"), tables.rows("gdn_decode", "bf16")
    columns = ("batch", "new_tokens", "heads", "kv_heads", "head_dim", "time_us")
    assert [prefill[c].tolist() for c in columns] == [[3], [64], [4], [2], [128], [40.0]]
    assert [decode[c].tolist() for c in columns] == [[3], [1], [4], [2], [128], [3.2]]
    assert not tables.rows("kda_prefill", "bf16")
    _write(data / "linear" / "vllm" / "0.24" / "gdn_perf.parquet", **shape, latency=[0.01234567, 1, 1, 1, 1])
    import_aiconfigurator(package, "x1", "vllm", tmp_path / "own")
    assert KernelTables.load(folder=tmp_path / "own").rows("gdn_prefill", "bf16")["time_us"].tolist() == [1012.0]


def test_an_unknown_system_or_package_is_named(package: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown system 'x2'"):
        import_aiconfigurator(package, "x2", "vllm", tmp_path / "out")
    with pytest.raises(UserError, match="is neither the aiconfigurator-core package nor its wheel"):
        import_aiconfigurator(tmp_path / "nothing", "x1", "vllm", tmp_path / "out")


def test_a_folder_without_tables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="contains no kernel tables"):
        KernelTables.load(folder=tmp_path)


def test_rows_of_one_operator_may_lie_apart_and_in_several_row_groups(tmp_path: Path) -> None:
    ops, times = ["gemm", "norm", "gemm", "norm", "gemm"], [10.0, 20.0, 11.0, 21.0, 12.0]
    columns: dict[str, Any] = {"op": ops, "dtype": ["bf16", "bf16", "fp8", "bf16", "bf16"], "time_us": times}
    write_table(tmp_path / "whole.parquet", columns | {"m": [1, 2, 3, 4, 5], "n": [64] * 5, "k": [64] * 5}, {})
    table = pq.read_table(tmp_path / "whole.parquet")
    (tmp_path / "whole.parquet").unlink()
    pq.write_table(table, tmp_path / "apart.parquet", row_group_size=2)
    tables = KernelTables.load(folder=tmp_path)
    assert tables.measured == [("gemm", "bf16"), ("gemm", "fp8"), ("norm", "bf16")]
    rows = {key: tables.rows(*key) for key in tables.measured}
    found = {key: list(zip(of["m"].tolist(), of["time_us"].tolist(), strict=True)) for key, of in rows.items()}
    assert found == {
        ("gemm", "bf16"): [(1, 10.0), (5, 12.0)],
        ("gemm", "fp8"): [(3, 11.0)],
        ("norm", "bf16"): [(2, 20.0), (4, 21.0)],
    }


def test_a_row_without_an_operator_is_refused(tmp_path: Path) -> None:
    columns: dict[str, Any] = {"op": ["norm", None], "dtype": ["bf16"] * 2, "time_us": [10.0, 11.0], "m": [1, 2]}
    write_table(tmp_path / "some.parquet", columns, {})
    with pytest.raises(UserError, match=r"some\.parquet: a row has no 'op'"):
        KernelTables.load(folder=tmp_path).rows("norm", "bf16")


@pytest.mark.medium
def test_pricing_a_step_does_not_import_pandas() -> None:
    code = (
        "import sys; from servesim.cost import build_cost_model; from servesim.hardware import Gpu, ModelSpec;"
        "build_cost_model(ModelSpec.load('llama-3.1-8b'), Gpu.load('h100'));"
        "sys.exit('pandas' in sys.modules or 'scipy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
