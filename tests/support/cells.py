"""Measured cells by hand, and a table of them."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from servesim.experiments.accuracy.cells import Cell

COLUMNS = (
    "id", "silicon_data_source", "backend", "backend_version", "model_path", "system", "precision", "mode", "isl",
    "osl", "gemm_quant_mode", "batch_size", "tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size",
    "silicon_ttft_ms", "silicon_tpot_ms",
)  # fmt: skip


def cell(**other: Any) -> Cell:
    """A sound cell: Llama-3.1-8B in bf16 on one H100 under vLLM 0.18.0, 128/32, 4 clients."""
    plain: dict[str, Any] = {
        "id": "a",
        "source": "silicon_concurrency=4",
        "engine": "vllm",
        "version": "0.18.0",
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "gpu": "h100_sxm",
        "precision": "bf16",
        "weights": "bfloat16",
        "mode": "agg",
        "isl": 128,
        "osl": 32,
        "concurrency": 4,
        "tp": 1,
        "pp": 1,
        "dp": 1,
        "moe_tp": 1,
        "ep": 1,
        "ttft_ms": 20.0,
        "tpot_ms": 7.0,
    }
    return Cell(**(plain | other))


def row(**other: Any) -> dict[str, Any]:
    """A line of a table: the same cell under the columns' names."""
    plain = {
        "id": "a",
        "silicon_data_source": "source_file=x.csv; silicon_concurrency=4; image=vllm/vllm-openai:v0.18.0",
        "backend": "vllm",
        "backend_version": "0.18.0",
        "model_path": "meta-llama/Llama-3.1-8B-Instruct",
        "system": "h100_sxm",
        "precision": "bf16",
        "mode": "agg",
        "isl": 128,
        "osl": 32,
        "gemm_quant_mode": "bfloat16",
        "batch_size": "",
        "tp_size": 1,
        "pp_size": 1,
        "attention_dp_size": 1,
        "moe_tp_size": 1,
        "moe_ep_size": 1,
        "silicon_ttft_ms": 20.0,
        "silicon_tpot_ms": 7.0,
    }
    return plain | other


def table(path: Path, rows: Sequence[dict[str, Any]], columns: Sequence[str] = COLUMNS) -> Path:
    """Write a table of cells."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path
