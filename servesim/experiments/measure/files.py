"""Files of a measurement: a table of cells, every loop as a recorded run, and the known facts about the server."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from servesim.errors import UserError
from servesim.experiments.accuracy.recipes import recipes
from servesim.experiments.measure.loops import SHORTEST, means
from servesim.experiments.measure.startup import Facts
from servesim.experiments.measure.study import Measured, Measurement
from servesim.run.result_files import to_json, writable

CELLS, SERVER, RUNS = "cells.csv", "server_config.json", "runs"
FORMATS = {"bf16": "bfloat16", "fp8": "fp8", "int4": "awq"}
"""Labels of weight formats, by servesim's names for the formats."""


def refuse(out: Path) -> None:
    """Raise UserError, before the measurement, if its files cannot be written."""
    if not out.name:
        raise UserError(f'--out "{out}": is not a valid folder name')
    if out.exists() or out.is_symlink():
        raise UserError(f"--out {out}: already exists; a measurement must be written to a new folder")
    with writable(out):
        parent = _parent(out)
        if not parent.is_dir() or not os.access(parent, os.W_OK):
            raise UserError(f"--out {out}: cannot be written: no permission in {parent}")


def write(out: Path, measurement: Measurement, labels: Mapping[str, Any], date: str) -> None:
    """Write all files or none. `labels` holds the server's gpu, tp and dtype, and its model under the name used in
    cells."""
    config = {**server(measurement.facts, labels), "measured": date, "notes": measurement.notes}
    with writable(out), tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=_parent(out)) as folder:
        partial = Path(folder) / out.name
        (partial / RUNS).mkdir(parents=True)
        for run in measurement.runs:
            (partial / RUNS / f"{run.name}.csv").write_text(_table(_rows(run)), encoding="utf-8")
        (partial / CELLS).write_text(table(measurement, labels, date), encoding="utf-8")
        (partial / SERVER).write_text(to_json(config), encoding="utf-8")
        out.parent.mkdir(parents=True, exist_ok=True)
        partial.rename(out)


def _parent(out: Path) -> Path:
    """Return the nearest folder above that exists."""
    return next(folder for folder in out.absolute().parents if folder.exists())


def table(measurement: Measurement, labels: Mapping[str, Any], date: str) -> str:
    """Return the text of cells.csv."""
    return _table([_cell(run, measurement.facts, labels, date) for run in measurement.runs])


def server(facts: Facts, labels: Mapping[str, Any]) -> dict[str, Any]:
    """Return `server_config.json` in the form that readers of recorded runs expect."""
    known = {key: value for key, value in facts.items() if key not in ("engine", "engine_version")}
    engine = f"{facts.get('engine', 'vllm')} {facts.get('engine_version', '')}".strip()
    return {
        **known,
        "model": labels["model"],
        "gpu": labels["gpu"],
        "tensor_parallel_size": labels["tp"],
        "dtype": labels["dtype"],
        "engine": engine,
        "max_num_seqs": facts.get("max_num_seqs"),
    }


def settings(facts: Facts) -> dict[str, Any]:
    """Return the facts about the server that matter for a replay, as dotted settings of a scenario."""
    vllm = facts.get("engine", "vllm") == "vllm"
    names = {
        "max_num_seqs": "scheduler.max_num_seqs" if vllm else "scheduler.max_running_requests",
        "max_num_batched_tokens": "scheduler.max_num_batched_tokens" if vllm else "scheduler.chunked_prefill_size",
        "max_model_len": "engine.max_model_len",
        "api_server_count": "engine.api_server_count",
        **({"num_gpu_blocks": "engine.num_gpu_blocks", "block_size": "engine.block_size"} if vllm else {}),
    }
    if facts.get("engine") == "trtllm":
        names = {"max_model_len": "engine.max_model_len"}
    found = {names[key]: value for key, value in facts.items() if key in names}
    if str(facts.get("kv_cache_dtype", "")).startswith("fp8"):
        found["kv_dtype"] = "fp8"
    if (backend := str(facts.get("moe_backend", "")).lower()) in ("triton", "marlin"):
        found["engine.moe_backend"] = backend
    return dict(sorted(found.items()))


def _cell(run: Measured, facts: Facts, labels: Mapping[str, Any], date: str) -> dict[str, Any]:
    """Return a row of cells.csv: aiconfigurator's columns, plus the number of requests of a cell and the server's
    settings (JSON). Lengths are nominal, i.e. the measured means divided by the mean of SHORTEST and 1."""
    mean_share = (1 + SHORTEST) / 2
    ttft, tpot = means(run.answers)
    systems = {name: label for label, name in recipes()["gpus"].items()}
    return {
        "id": run.name,
        "silicon_data_source": f"servesim measure {date} silicon_concurrency={run.point.clients}",
        "backend": facts.get("engine", "vllm"),
        "backend_version": facts.get("engine_version", ""),
        "model_path": labels["model"],
        "system": systems.get(labels["gpu"], labels["gpu"]),
        "precision": labels["dtype"],
        "gemm_quant_mode": FORMATS[labels["dtype"]],
        "mode": "agg",
        "isl": round(fmean(a.prompt_tokens for a in run.answers) / mean_share),
        "osl": round(fmean(a.output_tokens for a in run.answers) / mean_share),
        "batch_size": run.point.clients,
        "requests": len(run.answers),
        "tp_size": labels["tp"],
        "pp_size": 1,
        "attention_dp_size": 1,
        "moe_tp_size": labels["tp"],
        "moe_ep_size": 1,
        "silicon_ttft_ms": f"{ttft:.6g}",
        "silicon_tpot_ms": f"{tpot:.6g}",
        "settings": json.dumps(settings(facts), sort_keys=True),
    }


def _rows(run: Measured) -> list[dict[str, Any]]:
    """Return the rows of a recorded run, with times in us since the first request."""
    start = run.answers[0].sent_ns
    return [
        {
            "send_time_us": f"{(a.sent_ns - start) / 1e3:.3f}",
            "first_chunk_time_us": f"{(a.first_ns - start) / 1e3:.3f}",
            "last_chunk_time_us": f"{(a.last_ns - start) / 1e3:.3f}",
            "server_input_tokens": a.prompt_tokens,
            "output_tokens": a.output_tokens,
            "status": "ok",
            "max_concurrency": run.point.clients,
        }
        for a in run.answers
    ]


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    import pandas as pd

    return pd.DataFrame(rows, dtype=object).to_csv(index=False, lineterminator="\n")
