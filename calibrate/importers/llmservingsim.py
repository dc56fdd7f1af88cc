"""LLMServingSim's profiles (CASYS Lab at KAIST, MIT) as kernel tables.

A profile is a folder `<GPU>/<model>/tp<N>` of CSV files with the times of one layer on one GPU, in microseconds:

- `dense.csv` (layer, tokens): projections and small operators. Widths are the model's, sharded over N GPUs.
- `per_sequence.csv` (layer, sequences): LM head and sampler.
- `attention.csv` (prefill_chunk, kv_prefill, n_decode, kv_decode): one call over a prompt chunk and decodes. The
  importer keeps decodes alone, prompts alone over any cached context, and both together if nothing is cached before the
  prompt (the schema has no place for other calls; on RTX PRO 6000, pricing the omitted calls from the kept ones is off
  by 3 % in the median and 10 % in the mean, mostly too slow).

- `skew.csv`, if present (n, pc, kp, kv_mean, kv_big, t_mean_us, t_skew_us): n decodes of mean context kv_mean, with
  either equal contexts or a longest context of kv_big, next to a prompt of pc tokens. Its times cover several calls
  (three on RTX PRO 6000); the number is found by comparison with `attention.csv`. Rows without cached context before
  the prompt are kept.
"""

from __future__ import annotations

import datetime
import re
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from servesim.calibrate.importers.columns import Columns, read_columns
from servesim.cost.tables import write_table
from servesim.errors import UserError
from servesim.hardware.model import ModelSpec, check_tp, kv_heads_per_gpu

_COLUMNS = {
    "dense.csv": ("layer", "tokens", "time_us"),
    "per_sequence.csv": ("layer", "sequences", "time_us"),
    "attention.csv": ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"),
}
_SKEW_TIMES, _SKEW_COUNTS = ("t_mean_us", "t_skew_us"), ("n", "pc", "kp", "kv_mean", "kv_big")
_LEFT_OUT = ("final_layernorm",)
"""Layers left out because they are the same operator as `layernorm`, at the same width."""
_AGREE = 0.05
"""Maximum relative difference between the times of one decode batch in attention.csv and skew.csv."""
_NOT_MEASURED = (
    "writing the KV cache, host time and launch gaps; spread of the timings; several prompts in one call; decodes "
    "beside a prompt over cached context"
)


def import_llmservingsim(folder: str | Path, out_dir: str | Path) -> dict[str, int]:
    """Write the kernel tables of a profile: its `tp<N>` folder, or a parent folder that contains no other profile.

    The model is the bundled one that the folder above `tp<N>` is named after. Return the number of rows written, by
    file name.
    """
    source = _profile(Path(folder))
    model, tp = _model(source)
    dense, rows, attention = (_read(source / name) for name in _COLUMNS)
    skew = source / "skew.csv"
    unequal = read_columns(skew, _SKEW_TIMES, _SKEW_COUNTS) if skew.is_file() else None
    tables = {
        "gemm.parquet": _gemms(source, model, tp, dense, rows),
        "small.parquet": _small(model, tp, dense, rows),
        "attention.parquet": _attention(model, tp, attention),
    }
    if unequal is not None:
        tables["skew.parquet"] = _skew(skew, model, tp, unequal, attention)
    written = {}
    for name, columns in tables.items():
        write_table(Path(out_dir) / name, columns, _provenance(source))
        written[name] = len(columns["time_us"])
    return written


def _profile(folder: Path) -> Path:
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    found = sorted(path.parent for path in folder.rglob("dense.csv"))
    if len(found) != 1:
        which = ", ".join(str(path.relative_to(folder)) for path in found) or "none"
        raise UserError(f"{folder}: must hold one profile with a dense.csv (found: {which})")
    return found[0].resolve()


def _model(source: Path) -> tuple[ModelSpec, int]:
    """Return the model and its tensor-parallel degree, taken from the folder names."""
    match = re.fullmatch(r"tp(\d+)", source.name)
    if match is None or not int(match[1]):
        raise UserError(f"{source}: the folder must be named tp<number of GPUs>")
    model, tp = ModelSpec.load(source.parent.name), int(match[1])
    if model.experts is not None or model.latent is not None:
        raise UserError(f"{source}: only dense models with attention heads can be imported, not {model.name}")
    check_tp(model, tp)
    return model, tp


def _read(path: Path) -> Columns:
    times, text = ("time_us",), tuple(name for name in _COLUMNS[path.name] if name == "layer")
    return read_columns(path, times, [name for name in _COLUMNS[path.name] if name not in (*times, *text)], text)


def _gemms(source: Path, model: ModelSpec, tp: int, dense: Columns, rows: Columns) -> Columns:
    hidden, inter = model.hidden_size, model.intermediate_size // tp
    q, kv = model.num_heads // tp * model.head_dim, kv_heads_per_gpu(model, tp) * model.head_dim
    widths = {
        "qkv_proj": (q + 2 * kv, hidden),
        "o_proj": (hidden, q),
        "gate_up_proj": (2 * inter, hidden),
        "down_proj": (hidden, inter),
        "lm_head": (model.vocab_size // tp, hidden),
    }
    missing = sorted(set(widths) - {*dense["layer"], *rows["layer"]})
    if missing:
        raise UserError(f"{source}: no times for {missing[0]}")
    found = _shaped("gemm", widths, dense, "tokens")
    more = _shaped("gemm", widths, rows, "sequences")
    return {name: found[name] + more[name] for name in found}


def _small(model: ModelSpec, tp: int, dense: Columns, rows: Columns) -> Columns:
    """Return norms, activation, rotary embedding, embedding and sampler under their own names."""
    rotary = (model.num_heads // tp + kv_heads_per_gpu(model, tp)) * model.head_dim
    widths = {
        "layernorm": ("norm", model.hidden_size),
        "act_fn": ("activation", model.intermediate_size // tp),
        "rotary_emb": ("rotary", rotary),
        "embedding": ("embedding", model.hidden_size),
        "sampler": ("sampler", model.vocab_size),
    }
    whole: Columns = {name: [] for name in ("op", "dtype", "m", "n", "kernel", "time_us")}
    for layer, (op, width) in widths.items():
        for columns, axis in ((dense, "tokens"), (rows, "sequences")):
            part = _shaped(op, {layer: (width, None)}, columns, axis)
            for name in whole:
                whole[name] += part[name]
    return whole


def _shaped(op: str, widths: dict[str, Any], columns: Columns, axis: str) -> Columns:
    """Return the rows of the layers in `widths`, which maps each layer to (n, k)."""
    taken = [i for i, layer in enumerate(columns["layer"]) if layer in widths and columns[axis][i]]
    return {
        "op": [op] * len(taken),
        "dtype": ["bf16"] * len(taken),
        "m": [columns[axis][i] for i in taken],
        "n": [widths[columns["layer"][i]][0] for i in taken],
        "k": [widths[columns["layer"][i]][1] for i in taken],
        "kernel": [columns["layer"][i] for i in taken],
        "time_us": [columns["time_us"][i] for i in taken],
    }


def _attention(model: ModelSpec, tp: int, columns: Columns) -> Columns:
    heads = (model.num_heads // tp, kv_heads_per_gpu(model, tp), model.head_dim)
    names = ("op", "dtype", "batch", "new_tokens", "past_tokens", "heads", "kv_heads", "head_dim", "kernel", "time_us")
    rows = []
    for chunk, cached, count, context, time in zip(*(columns[c] for c in _COLUMNS["attention.csv"]), strict=True):
        if chunk and count and not cached:
            call = ("attention_mixed", "bf16", count, chunk, context)
        elif chunk and not count:
            call = ("attention_prefill", "bf16", 1, chunk, cached)
        elif count and not chunk:
            call = ("attention_decode", "bf16", count, 1, context)
        else:
            continue
        rows.append((*call, *heads, "attention", time))
    return {name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


def _skew(path: Path, model: ModelSpec, tp: int, columns: Columns, attention: Columns) -> Columns:
    """Return rows with unequal contexts, and rows with equal contexts of the same mean for comparison; repeats are
    replaced by their median."""
    heads = (model.num_heads // tp, kv_heads_per_gpu(model, tp), model.head_dim)
    names = ("batch", "new_tokens", "past_tokens", "longest", "heads", "kv_heads", "head_dim")
    calls, repeats = _calls(path, columns, attention), dict[tuple[int, ...], list[float]]()
    for equal, skewed, n, chunk, cached, mean, longest in zip(*columns.values(), strict=True):
        if not cached:
            for kv, time in ((mean, equal), (longest, skewed)):
                repeats.setdefault((n, chunk, mean, kv, *heads), []).append(time / calls)
    keys = sorted(repeats)
    found = {name: list(column) for name, column in zip(names, zip(*keys, strict=True), strict=True)}
    constant = {"op": "attention_skew", "dtype": "bf16", "kernel": "attention"}
    found |= {name: [value] * len(keys) for name, value in constant.items()}
    return found | {"time_us": [median(repeats[key]) for key in keys]}


def _calls(path: Path, columns: Columns, attention: Columns) -> int:
    """Return the number of calls that a time in skew.csv covers: the time of equal-context decodes there divided by
    their time in attention.csv."""
    lines: dict[int, dict[int, float]] = {}
    for chunk, _, count, context, time in zip(*(attention[c] for c in _COLUMNS["attention.csv"]), strict=True):
        if count and not chunk:
            lines.setdefault(count, {})[context] = time
    ratios = []
    for n, chunk, mean, time in zip(*(columns[c] for c in ("n", "pc", "kv_mean", "t_mean_us")), strict=True):
        if not chunk and n in lines and min(lines[n]) <= mean <= max(lines[n]):
            contexts = sorted(lines[n])
            ratios.append(time / float(np.interp(mean, contexts, [lines[n][c] for c in contexts])))
    ratio = median(ratios) if ratios else 0.0
    calls = round(ratio)
    if not calls or abs(ratio / calls - 1.0) > _AGREE:
        raise UserError(f"{path}: decodes of equal contexts take {ratio:.2f} times what they take in attention.csv")
    return calls


def _provenance(source: Path) -> dict[str, Any]:
    return {
        "project": "LLMServingSim 2.0",
        "licence": "MIT",
        "copyright": "Copyright (c) 2024, CASYS Lab at KAIST",
        "framework": "vllm",
        "device": source.parent.parent.name,
        "sources": [{"profile": "/".join(source.parts[-3:]), "files": sorted(_COLUMNS)}],
        "imported": datetime.date.today().isoformat(),
        "changes": "columns renamed to the neutral schema, layers replaced by their widths in the model; left out: "
        f"{', '.join(_LEFT_OUT)} (as layernorm), decodes beside a prompt over cached context; times of skew.csv "
        "divided by the number of calls they cover",
        "not_measured": _NOT_MEASURED,
    }
