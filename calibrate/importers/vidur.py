"""Vidur's profiles (Microsoft Research, MIT) as kernel tables.

A profile is a folder of CSV files with the times of one call in milliseconds; medians are in the columns
`time_stats.<operator>.median`:

- `compute/<gpu>/<organisation>/<model>/mlp.csv` by num_tokens and tensor-parallel degree: projections of a layer and
  small operators. Its columns include the widths of the model. The residual addition (`add`), which is included in the
  norms here, is timed separately.
- `compute/<gpu>/<organisation>/<model>/attention*.csv`: decodes by batch_size and kv_cache_size; one prompt chunk by
  prefill_chunk_size and kv_cache_size. Times of the other phase are empty.
- `network/<gpu>_<server>/all_reduce.csv` by GPUs and bytes. Rows that span several servers are left out.

Measurements of the same call from several models, tensor-parallel degrees or sessions are replaced by their median;
their spread is the stated repeat error. `send_recv.csv` and the CPU overheads are not used.
"""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from servesim.calibrate.importers.columns import read_columns, relative_error
from servesim.cost.tables import write_table
from servesim.errors import UserError, suggest

_LINEAR = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")
_NORMS = ("input_layernorm", "post_attention_layernorm")
_SMALL = (*_NORMS, "add", "mlp_act", "attn_rope", "emb")
_MODEL = ("n_head", "n_kv_head", "n_embd", "n_expanded_embd")
_TP = "num_tensor_parallel_workers"
_ATTENTION = ("batch_size", "prefill_chunk_size", "kv_cache_size", "n_embd", "n_q_head", "n_kv_head", _TP)
_NETWORK = ("num_workers", "devices_per_node", "size")
_KEYS = {
    "gemm": ("op", "m", "n", "k"),
    "small": ("op", "m", "n"),
    "attention": ("op", "batch", "new_tokens", "past_tokens", "heads", "kv_heads", "head_dim"),
    "comm": ("op", "gpus", "bytes"),
}
"""Key columns of the written tables."""
_NOT_MEASURED = (
    "LM head, sampling, writing the KV cache, all-gather, host time and launch gaps; several prompts in one call; "
    "decodes of unequal contexts or beside a prompt; times are rounded to 1 us or half that"
)

_Row = tuple[tuple[Any, ...], str, float]
"""Key, kernel name, and time in microseconds."""
_Reader = Callable[[Path], Iterator[_Row]]


def import_vidur(
    folder: str | Path, out_dir: str | Path, gpu: str | None = None, network: str | None = None
) -> dict[str, int]:
    """Write the kernel tables of all profiles of one GPU under `folder`. Return the number of rows written, by file
    name.

    `gpu` ("a100") and `network` ("a100_dgx") are names of Vidur's folders and are required if there are several. If a
    GPU has several networks, `<gpu>_dgx` is the default.
    """
    root = Path(folder)
    if not root.is_dir():
        raise UserError(f"{root}: no such folder")
    compute = _below(root, "compute", "mlp.csv", "attention*.csv")
    kind = _chosen("GPU", compute, gpu, root)
    layers = [path for path in compute.get(kind, []) if path.name == "mlp.csv"]
    found: dict[str, tuple[list[Path], _Reader]] = {
        "gemm": (layers, _gemms),
        "small": (layers, _small),
        "attention": ([path for path in compute.get(kind, []) if path not in layers], _attention),
        "comm": (_network(root, kind or gpu or "", network), _all_reduces),
    }
    if not any(paths for paths, _ in found.values()):
        raise UserError(f"{root}: contains no Vidur profile (mlp.csv, attention*.csv, all_reduce.csv)")
    tables = {name: (paths, [row for path in paths for row in read(path)]) for name, (paths, read) in found.items()}
    written, device = {}, gpu or kind or root.resolve().name
    for name, (paths, rows) in tables.items():
        if rows:
            sources = [str(path.relative_to(root.resolve())) for path in paths]
            written[f"{name}.parquet"] = _write(Path(out_dir), name, rows, {"device": device, "sources": sources})
    return written


def _below(root: Path, kind: str, *patterns: str) -> dict[str, list[Path]]:
    """Return the files under `root`, grouped by the name of their folder below `compute` or `network`, or under "" if
    they are not in such a folder."""
    found: dict[str, list[Path]] = {}
    for path in sorted({path for pattern in patterns for path in root.resolve().rglob(pattern)}):
        parts = path.parts
        name = parts[parts.index(kind) + 1] if kind in parts else ""
        found.setdefault(name, []).append(path)
    return found


def _chosen(what: str, found: dict[str, list[Path]], asked: str | None, root: Path) -> str:
    """Return the requested entry of `found`, or the only one there is."""
    if asked is not None and set(found) - {""}:
        if asked not in found:
            raise UserError(f"{root}: no profile of {what} {asked!r}{suggest(asked, found)}")
        return asked
    if len(found) > 1:
        raise UserError(f"{root} holds profiles of several {what}s; choose one: {', '.join(sorted(found))}")
    return next(iter(found), "")


def _network(root: Path, gpu: str, asked: str | None) -> list[Path]:
    """Return the all-reduce files of the requested server, by default those of the server with every GPU on one
    switch."""
    found = _below(root, "network", "all_reduce.csv")
    mine = {name: paths for name, paths in found.items() if name.partition("_")[0] == gpu or not gpu}
    if asked is None and f"{gpu}_dgx" in mine:
        asked = f"{gpu}_dgx"
    return mine.get(_chosen("network", mine, asked, root), [])


def _mlp(path: Path, operators: tuple[str, ...]) -> Iterator[tuple[dict[str, float], dict[str, int]]]:
    """Yield the microseconds by operator and the counts, row by row; widths are for this GPU's shard."""
    times = [f"time_stats.{name}.median" for name in operators]
    columns = read_columns(path, times, ("num_tokens", _TP, *_MODEL), ("use_gated_mlp",))
    for i in range(len(columns["num_tokens"])):
        count = {name: columns[name][i] for name in ("num_tokens", _TP, *_MODEL)}
        count |= {"gates": 2 if columns["use_gated_mlp"][i] == "True" else 1}
        tp = count[_TP]
        if not tp or not count["num_tokens"] or count["n_head"] % tp or count["n_expanded_embd"] % tp:
            raise UserError(f"{path}: row {i + 1}: {count['n_head']} heads cannot be split over {tp} GPUs")
        yield {name: columns[time][i] * 1e3 for name, time in zip(operators, times, strict=True)}, count


def _gemms(path: Path) -> Iterator[_Row]:
    for us, row in _mlp(path, _LINEAR):
        hidden, inter = row["n_embd"], row["n_expanded_embd"] // row[_TP]
        q, kv = _heads(row)
        shapes = ((q + 2 * kv, hidden), (hidden, q), (row["gates"] * inter, hidden), (hidden, inter))
        for name, (n, k) in zip(_LINEAR, shapes, strict=True):
            yield ("gemm", row["num_tokens"], n, k), name, us[name]


def _small(path: Path) -> Iterator[_Row]:
    for us, row in _mlp(path, _SMALL):
        m, hidden, inter = row["num_tokens"], row["n_embd"], row["n_expanded_embd"] // row[_TP]
        for name in _NORMS:
            yield ("norm", m, hidden), "layernorm, add", us[name] + us["add"]
        yield ("activation", m, inter), "mlp_act", us["mlp_act"]
        yield ("rotary", m, sum(_heads(row))), "attn_rope", us["attn_rope"]
        yield ("embedding", m, hidden), "emb", us["emb"]


def _heads(row: dict[str, int]) -> tuple[int, int]:
    """Return the widths of queries and keys on one GPU."""
    dim = row["n_embd"] // row["n_head"]
    return row["n_head"] // row[_TP] * dim, max(row["n_kv_head"] // row[_TP], 1) * dim


def _attention(path: Path) -> Iterator[_Row]:
    phases = ("time_stats.attn_prefill.median", "time_stats.attn_decode.median")
    text = ("is_prefill", "attention_backend")
    columns = read_columns(path, phases, _ATTENTION, text, skip_empty=True)
    backends = sorted(set(columns["attention_backend"]))
    if len(backends) > 1:
        raise UserError(f"{path}: several attention backends ({', '.join(backends)}): a table can hold only one")
    for i, prefill in enumerate(columns["is_prefill"]):
        time = columns[phases[0 if prefill == "True" else 1]][i]
        if time is None:
            raise UserError(f"{path}: row {i + 1}: the time of its phase is missing (is_prefill is {prefill})")
        batch, chunk, cached, hidden, heads, kv_heads, tp = (columns[name][i] for name in _ATTENTION)
        if not (batch and tp and heads) or heads % tp or hidden % heads:
            raise UserError(
                f"{path}: row {i + 1}: {heads} heads with hidden size {hidden} cannot be split over {tp} GPUs"
            )
        op, new = ("attention_prefill", chunk) if prefill == "True" else ("attention_decode", 1)
        shape = (heads // tp, max(kv_heads // tp, 1), hidden // heads)
        yield (op, batch, new, cached, *shape), backends[0].rpartition(".")[2].lower(), time * 1e3


def _all_reduces(path: Path) -> Iterator[_Row]:
    columns = read_columns(path, ("time_stats.all_reduce.median",), _NETWORK)
    for time, gpus, per_node, size in zip(*columns.values(), strict=True):
        if gpus == per_node:
            yield ("all_reduce", gpus, size), "all_reduce", time * 1e3


def _write(folder: Path, table: str, rows: list[_Row], source: dict[str, Any]) -> int:
    repeats: dict[tuple[Any, ...], list[float]] = {}
    kernels: dict[tuple[Any, ...], str] = {}
    for key, kernel, us in rows:
        repeats.setdefault(key, []).append(us)
        kernels.setdefault(key, kernel)
    keys = sorted(repeats)
    columns = {name: list(column) for name, column in zip(_KEYS[table], zip(*keys, strict=True), strict=True)}
    columns |= {"dtype": ["bf16"] * len(keys), "kernel": [kernels[key] for key in keys]}
    columns["time_us"] = [statistics.median(repeats[key]) for key in keys]
    provenance = _provenance(relative_error(repeats.values())) | source
    write_table(folder / f"{table}.parquet", columns, provenance)
    return len(keys)


def _provenance(error: float | None) -> dict[str, Any]:
    entry = {
        "project": "Vidur",
        "licence": "MIT",
        "copyright": "Copyright (c) Microsoft Corporation",
        "framework": "sarathi-serve",
        "imported": datetime.date.today().isoformat(),
        "changes": "columns renamed to the neutral schema, milliseconds converted to microseconds, operators replaced "
        "by their widths in the model, norms and residual addition joined, repeats replaced by their median; left "
        "out: rows over several servers",
        "not_measured": _NOT_MEASURED,
    }
    return entry if error is None else {**entry, "relative_error": error}
