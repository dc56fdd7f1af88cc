"""What a run says of its kernel tables: what left them, what cannot be right, how far repeats lie apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import servesim
from servesim.cost import KernelTables
from servesim.cost.suspect import slow_collectives
from servesim.cost.tables import write_table
from servesim.hardware import Gpu, gpu_names
from servesim.metrics.steps import StepTotals

SHIPPED = sorted({tables for name in gpu_names() if (tables := Gpu.load(name).tables) is not None})


def run(**settings: Any) -> dict[str, Any]:
    options = {"trace": "synth:rate=4,prompt=900,output=60", "requests": 12, "model": "llama-3.1-8b", "gpu": "h100"}
    return servesim.simulate(**{**options, **settings}).summary


def thinned(folder: Path, contexts: int, **provenance: Any) -> Path:
    """The attention and GEMMs of an H100, decode measured up to `contexts` alone."""
    shipped = KernelTables.load("h100")
    for op in ("gemm", "attention_decode", "attention_prefill"):
        rows = shipped.rows(op, "bf16")
        kept = rows["past_tokens"] < contexts if op == "attention_decode" else rows["time_us"] > 0
        columns: dict[str, Any] = {name: column[kept] for name, column in rows.items()}
        count = int(kept.sum())
        write_table(folder / f"{op}.parquet", {**columns, "op": [op] * count, "dtype": ["bf16"] * count}, provenance)
    return folder


def test_a_run_names_each_operator_that_left_the_tables_once_and_alike_in_both_modes(tmp_path: Path) -> None:
    tables = str(thinned(tmp_path, 512))
    fast, plain = (run(kernel_tables=tables, host="none", mode=mode)["notes"] for mode in ("fast", "reference"))
    assert fast == plain
    (beyond,) = (note for note in fast if note.startswith("extrapolated"))
    assert beyond.count("attention_decode: contexts up to 9") == 1
    assert "measured up to 512" in beyond
    assert beyond.count("lm_head: a shape that was not measured") == 1


def test_the_furthest_context_is_that_of_the_steps_taken(tmp_path: Path) -> None:
    # one request, alone: 900 tokens of prompt, and the last step reads all but the last of 60 more
    tables = str(thinned(tmp_path, 512))
    notes = run(kernel_tables=tables, host="none", requests=1)["notes"]
    (beyond,) = (note for note in notes if note.startswith("extrapolated"))
    assert "contexts up to 959 of 1 sequences" in beyond


def test_an_all_reduce_no_server_can_be_so_slow_at_is_noted_where_it_is_used() -> None:
    notes = run(gpu="l40s", tp=8)["warnings"]
    assert any(
        "all_reduce over 8 GPUs reaches at most 1.8 GB/s, 10% of the link bandwidth of l40s" in note for note in notes
    )
    assert not any("was probably faulty" in note for note in run(gpu="l40s", tp=2)["warnings"])


def test_collectives_of_sound_servers_are_not_suspect() -> None:
    suspect = {gpu: slow_collectives(KernelTables.load(gpu), Gpu.load(gpu)) for gpu in SHIPPED}
    assert {gpu for gpu, lines in suspect.items() if lines} == {"gb200", "l40s"}
    assert [line.split(" reaches")[0] for line in suspect["gb200"]] == ["all_reduce over 2 GPUs"]
    assert [line.split(" reaches")[0] for line in suspect["l40s"]] == [
        "all_reduce over 4 GPUs",
        "all_reduce over 8 GPUs",
        "all_reduce_nccl over 4 GPUs",
        "all_reduce_nccl over 8 GPUs",
        "all_gather over 4 GPUs",
        "all_gather over 8 GPUs",
    ]


def test_the_interval_is_of_what_was_measured_and_says_which_files_state_none(tmp_path: Path) -> None:
    summary = run(kernel_tables=str(thinned(tmp_path, 10**6, relative_error=0.02)), host="none")
    shares = summary["cost_shares"]
    known = shares["measured"] + shares["interpolated"]
    assert summary["uncertainty"] == pytest.approx(1.96 * 0.02 * known)
    assert not any(note.startswith("uncertainty") for note in summary["notes"])
    thinned(tmp_path / "none", 10**6)
    (tmp_path / "none" / "gemm.parquet").replace(tmp_path / "gemm.parquet")
    notes = run(kernel_tables=str(tmp_path), host="none")["notes"]
    assert any(note.startswith("uncertainty: gemm.parquet do not include the error of repeated") for note in notes)


def test_shipped_tables_state_no_error_and_a_run_says_so_once() -> None:
    summary = run()
    assert summary["uncertainty"] is None
    said = "uncertainty: the kernel tables do not include the error"
    assert len([note for note in summary["notes"] if note.startswith(said)]) == 1
    roofline = run(kernel_tables="roofline")
    assert not any(note.startswith(("uncertainty", "extrapolated")) for note in roofline["notes"])


def test_no_steps_leave_nothing_uncertain() -> None:
    assert StepTotals().uncertainty(0.02) is None
