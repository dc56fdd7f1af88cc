"""Kernel tables of another version of an engine lie inside those of the engine, and replace rows of theirs."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

import servesim
from servesim.calibrate.importers.aiconfigurator_older import import_older
from servesim.cost import KernelTables
from servesim.cost.tables import write_table
from servesim.errors import UserError
from servesim.versions import engine_facts

OLD = "h100-trtllm/1.0.0rc3"
HEAD = "framework,version,device,op_name,kernel_source,"
GEMM = f"""{HEAD}gemm_dtype,m,n,k,latency
TRTLLM,1.0.0,X1,gemm,torch_flow,float16,1,1024,4096,0.004
TRTLLM,1.0.0,X1,gemm,torch_flow,fp8,1,1024,4096,0.003
TRTLLM,1.0.0,X1,gemm,torch_flow,fp8,1,1024,4096,0.005
TRTLLM,1.0.0,X1,gemm,other,fp8,1,1024,4096,0.002
TRTLLM,1.0.0,X1,gemm,plugin,int8_wo,1,1024,4096,0.001
"""
COMM = f"""{HEAD}allreduce_dtype,num_gpus,message_size,latency
TRTLLM,1.0.0,X1,all_reduce,TRTLLM,float16,2,128,0.0032
"""


def test_its_rows_replace_those_of_the_engine_and_all_others_are_the_same() -> None:
    old, new = KernelTables.load(OLD), KernelTables.load("h100-trtllm")
    differ = {key for key in new.measured if old.rows(*key)["time_us"].sum() != new.rows(*key)["time_us"].sum()}
    assert differ == {("gemm", "bf16"), ("gemm", "fp8"), ("all_reduce", "bf16")}
    assert old.measured == new.measured
    versions = {s["framework_version"] for s in old.provenance["1.0.0rc3/gemm.parquet"]["sources"]}
    assert versions == {"1.0.0rc3"}


@pytest.mark.parametrize(
    ("version", "tables"), [("1.0.0rc3", OLD), ("1.0.0", OLD), ("1.1.0rc2", "h100-trtllm"), (None, "h100-trtllm")]
)
def test_a_run_takes_the_rows_of_its_version_and_says_so(version: str | None, tables: str) -> None:
    assert engine_facts("tensorrt-llm", version, "h100").get("kernel_tables") == tables
    engine = {} if version is None else {"engine": {"version": version}}
    run = {"trace": "synth:rate=1,prompt=100,output=5", "requests": 2, "model": "llama-3.1-8b", "gpu": "h100"}
    told = servesim.simulate(run, preset="tensorrt-llm", **engine).summary["provenance"]["kernel_tables"]
    assert told["name"] == tables
    assert ("1.0.0rc3/gemm.parquet" in told["sha256"]) == (tables == OLD)


def test_a_users_folder_stands_alone_whatever_lies_around_it(tmp_path: Path) -> None:
    for name, time_us in (("gemm", 1.0), ("inner/gemm", 2.0)):
        columns = {"op": ["gemm"], "dtype": ["bf16"], "m": [1], "n": [1], "k": [1], "time_us": [time_us]}
        write_table(tmp_path / f"{name}.parquet", columns, {})
    inner = KernelTables.load(folder=tmp_path / "inner")
    assert (inner.name, list(inner.files)) == ("inner", ["gemm.parquet"])


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "aiconfigurator-0.6.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        folder = "aiconfigurator/systems/data/h100_sxm/trtllm/1.0.0"
        archive.writestr(f"{folder}/gemm_perf.txt", GEMM)
        archive.writestr(f"{folder}/custom_allreduce_perf.txt", COMM)
    return path


def test_an_older_wheel_gives_medians_of_repeats_and_the_fastest_kernel(wheel: Path, tmp_path: Path) -> None:
    assert import_older(wheel, "h100_sxm", "trtllm", "1.0.0", tmp_path / "out") == {
        "gemm.parquet": 2,
        "comm.parquet": 1,
    }
    tables = KernelTables.load(folder=tmp_path / "out")
    assert tables.rows("gemm", "bf16")["time_us"].tolist() == [4.0]
    assert tables.rows("gemm", "fp8")["time_us"].tolist() == [2.0], "the other kernel's; its own median is 4"
    assert tables.rows("all_reduce", "bf16")["bytes"].tolist() == [256]
    assert tables.provenance["gemm.parquet"]["project"] == "aiconfigurator"


def test_what_a_wheel_lacks_is_named(wheel: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no tables of h100_sxm/trtllm/1\.0\.1"):
        import_older(wheel, "h100_sxm", "trtllm", "1.0.1", tmp_path / "out")
    (tmp_path / "no.whl").write_text("text")
    with pytest.raises(UserError, match="not a wheel of aiconfigurator"):
        import_older(tmp_path / "no.whl", "h100_sxm", "trtllm", "1.0.0", tmp_path / "out")
