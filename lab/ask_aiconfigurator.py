"""Asks AIConfigurator for the cells of a table of questions. Runs where aiconfigurator is installed, without servesim.

    python lab/ask_aiconfigurator.py questions.csv answers.csv [--mode HYBRID] [--budget]

Questions come from `python -m servesim_lab.against_aiconfigurator ask`. Each cell is estimated as
`aiconfigurator cli estimate` does it: one aggregated server, with as many requests in flight as the cell has clients.
Models and formats are those that the package bundles. An answer holds TPOT, TTFT and output tokens/s per GPU, or the
reason why there is none. With `--budget`, a step takes as many prompt tokens as the server's own limit; the package's
default is one prompt.
"""

from __future__ import annotations

import csv
import logging
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

ANSWER = ("id", "tpot_ms", "ttft_ms", "output_per_gpu", "version", "doubt", "reason")
_SAME: dict[str, tuple[str, dict[str, str]]] = {
    "MiniMaxAI/MiniMax-M2.5 fp8": (
        "MiniMaxAI/MiniMax-M2.5",
        {"gemm_quant_mode": "fp8", "moe_quant_mode": "fp8_block"},  # its products by blocks are timed twice as slow
    ),
    "MiniMaxAI/MiniMax-M2.5 fp4": ("nvidia/MiniMax-M2.5-NVFP4", {}),
    "moonshotai/Kimi-K2.5 fp4": ("nvidia/Kimi-K2.5-NVFP4", {}),
    "deepseek-ai/DeepSeek-R1 fp4": ("nvidia/DeepSeek-V3.1-NVFP4", {}),
    "deepseek-ai/DeepSeek-V3 fp4": ("nvidia/DeepSeek-V3.1-NVFP4", {}),
    "nvidia/DeepSeek-R1-NVFP4 fp4": ("nvidia/DeepSeek-V3.1-NVFP4", {}),
    "zhipuai/GLM-5 fp8": ("zai-org/GLM-5-FP8", {}),
    "meta-llama/Llama-3.1-70B fp8": ("nvidia/Llama-3.1-70B-Instruct-FP8", {}),
    "meta-llama/Llama-3.1-70B fp4": ("meta-llama/Meta-Llama-3.1-70B", {"gemm_quant_mode": "nvfp4"}),
    "meta-llama/Llama-3.1-8B-Instruct": ("meta-llama/Meta-Llama-3.1-8B", {}),
    "meta-llama/Llama-3.1-8B-Instruct fp8": ("meta-llama/Meta-Llama-3.1-8B", {"gemm_quant_mode": "fp8"}),
    "Qwen/Qwen3-32B fp8": ("Qwen/Qwen3-32B", {"gemm_quant_mode": "fp8"}),
    "Qwen/Qwen3.5-397B-A17B fp8": (
        "Qwen/Qwen3.5-397B-A17B",
        {"gemm_quant_mode": "fp8_block", "moe_quant_mode": "fp8_block"},
    ),
}
"""Bundled checkpoint and formats by label; a label that is not here is its own checkpoint, in its published formats."""
_KV = {"fp8": "fp8", "bf16": "bfloat16"}
_MXFP8 = {"moe_quant_mode": "w4a8_mxfp4_mxfp8"}
"""Format of gpt-oss under TensorRT-LLM on Blackwell that the package's search takes and its estimate does not."""


def question(row: Mapping[str, str], mode: str, budget: bool) -> dict[str, Any]:
    """Return the arguments of the package's estimate for one row."""
    model, formats = _SAME.get(f"{row['model']} {row['precision']}".strip(), (row["model"], {}))
    asked: dict[str, Any] = {
        "model_path": model,
        "system_name": row["gpu"],
        "backend_name": row["engine"],
        "database_mode": mode,
        "isl": int(row["isl"]),
        "osl": int(row["osl"]),
        "batch_size": int(row["batch"]),
        "tp_size": int(row["tp"]),
        "attention_dp_size": int(row["dp"]),
        "moe_tp_size": int(row["moe_tp"]),
        "moe_ep_size": int(row["ep"]),
        **formats,
    }
    if "gpt-oss" in model and row["engine"] == "trtllm" and "b" in row["gpu"]:
        asked |= _MXFP8
    if row["kv"] in _KV:
        asked["kvcache_quant_mode"] = _KV[row["kv"]]
    if budget:
        asked["ctx_tokens"] = int(row["budget"])
    return asked


def answer(estimate: Callable[..., Any], row: Mapping[str, str], mode: str, budget: bool) -> dict[str, Any]:
    """Return the answer to one row."""
    asked = question(row, mode, budget)
    try:
        try:
            found = estimate(**asked)
        except Exception:
            if "kvcache_quant_mode" not in asked:
                raise
            del asked["kvcache_quant_mode"]
            found = estimate(**asked)
    except Exception as error:  # whatever the package raises is the reason that is reported
        return {"id": row["id"], "reason": " ".join(f"{type(error).__name__}: {error}".split())[:300]}
    return {
        "id": row["id"],
        "tpot_ms": found.tpot,
        "ttft_ms": found.ttft,
        "output_per_gpu": found.raw["tokens/s/gpu"],
        "version": found.backend_version,
        "doubt": "more clients than KV memory holds" if found.kv_cache_warning else "",
    }


def main() -> None:
    """Answer the questions."""
    parse = ArgumentParser(description=__doc__)
    parse.add_argument("questions", type=Path)
    parse.add_argument("answers", type=Path)
    parse.add_argument("--mode", default="SILICON", help="SILICON, the default of the package, or HYBRID")
    parse.add_argument("--budget", action="store_true")
    given = parse.parse_args()
    logging.disable(logging.CRITICAL)
    estimate = import_module("aiconfigurator.cli.api").cli_estimate
    newest = cache(import_module("aiconfigurator.sdk.perf_database").get_latest_database_version)  # takes a second

    def at_newest(**asked: Any) -> Any:
        return estimate(**asked, backend_version=newest(asked["system_name"], asked["backend_name"]))

    with given.questions.open(newline="") as file:
        rows = list(csv.DictReader(file))
    answered = 0
    with given.answers.open("w", newline="") as file:
        out = csv.DictWriter(file, ANSWER, lineterminator="\n")
        out.writeheader()
        for row in rows:
            found = answer(at_newest, row, given.mode, given.budget)
            answered += "tpot_ms" in found
            out.writerow(found)
            file.flush()
    print(f"{answered} of {len(rows)} answered", file=sys.stderr)


if __name__ == "__main__":
    main()
