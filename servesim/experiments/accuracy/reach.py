"""Bounds that no server exceeds: the tokens per second that its matrix products alone allow, and the KV that fits in
its memory.

The bound on the rate uses the kernels measured on a GPU for the model's own shapes, each at the number of tokens at
which it is fastest. It ignores the host, attention, collectives and scheduling. A cell that exceeds a bound was not run
as its labels state.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import inf

from servesim.contracts.cost import Batch
from servesim.cost.breakdown import ATTENTION_PREFILL, breakdown
from servesim.cost.build import build_cost_model
from servesim.errors import UserError
from servesim.experiments.accuracy.cells import Cell
from servesim.experiments.accuracy.recipes import output_mean, recipe, source_of
from servesim.hardware.gpu import Gpu
from servesim.hardware.model import ModelSpec

TOKENS = tuple(2**i for i in range(8, 15))
"""Token counts per step that are searched for the fastest rate of matrix products: 256 to 16,384."""
_OTHERS = (
    ATTENTION_PREFILL,
    *("norm", "activation", "shared_activation", "embedding", "kv_write", "rotary", "router", "all_reduce"),
)
"""Operators of a step that are not matrix products or are only small ones."""
KV_SHARE = 0.8
"""Share of a GPU's memory that weights and KV may use, so that everything else fits in any engine."""


@dataclass(frozen=True)
class Reach:
    """Limits of one server."""

    tokens_per_s: float
    """Rate in tokens/s if its matrix products run at their fastest; infinite if no kernels were measured."""
    kv_tokens: float
    """Number of KV tokens that fit next to the weights in `KV_SHARE` of the memory, or 0 if the weights do not fit."""


def prompt_mean(cell: Cell) -> float:
    """Return the mean length of the prompts that clients sent, in tokens."""
    return cell.isl * float(sum(source_of(cell)["prompt"])) / 2


def tokens_per_s(cell: Cell) -> float:
    """Return the tokens per second, counting prompts and answers, of closed-loop clients with the measured times."""
    answer = output_mean(cell)
    seconds = (cell.ttft_ms + (answer - 1) * cell.tpot_ms) / 1e3
    return cell.concurrency * (prompt_mean(cell) + answer) / seconds


def reach_of(cell: Cell) -> Reach | None:
    """Return the limits of a cell's server. Return None if it cannot be replayed, if its ranks share experts, or if
    prefill and decode are disaggregated."""
    try:
        settings = recipe(cell).settings
    except UserError:
        return None
    if "dp" in settings or "pools" in settings:
        return None
    parallel = bool(settings.get("engine", {}).get("enable_expert_parallel"))
    kv_dtype = settings.get("kv_dtype", "bf16")
    return _reach(settings["model"], settings["gpu"], settings["tp"], settings["dtype"], kv_dtype, parallel)


@cache
def _reach(model: str, gpu: str, tp: int, dtype: str, kv_dtype: str, parallel: bool) -> Reach | None:
    try:
        spec, sheet = ModelSpec.load(model), Gpu.load(gpu)
        cost = build_cost_model(spec, sheet, tp, dtype, kv_dtype=kv_dtype, ep=tp if parallel else 1)
    except UserError:
        return None
    free = KV_SHARE * sheet.memory_bytes - spec.weight_bytes(dtype) / tp
    kv_tokens = max(free, 0.0) / spec.kv_bytes_per_token(kv_dtype, tp)
    if cost.tables is None:
        return Reach(inf, kv_tokens)
    passes = [breakdown(cost, Batch(linear_tokens=m, prefill=[(m, 0)])) for m in TOKENS]
    products = [name for name in passes[0] if name not in _OTHERS]
    seconds = sum(min(one[name] / m for one, m in zip(passes, TOKENS, strict=True)) for name in products) / 1e9
    return Reach(1.0 / seconds, kv_tokens)
