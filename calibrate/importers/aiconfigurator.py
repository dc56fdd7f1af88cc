"""Kernel timings of the `aiconfigurator-core` package (NVIDIA, Apache-2.0) as kernel tables.

The package carries its measurements as Parquet at
`<package>/systems/data/<system>/<family>/<framework>/<version>/<table>.parquet`; latencies are milliseconds
of one call, timed under a CUDA graph with 3 warm-up and 6 timed runs. What is kept: everything a dense
decoder needs in bf16 and per-tensor fp8, at full attention (window_size 0), whatever its shapes. Repeated
measurements of one shape become their median.
"""

from __future__ import annotations

import datetime
import io
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

from servesim.cost.tables import KEY_COLUMNS, write_table
from servesim.errors import UserError, suggest

PACKAGES = ("aiconfigurator_core", "aisimulate_core")
"""The layout is the same under the name its distribution may move to."""
_DTYPES = {"bfloat16": "bf16", "fp8": "fp8"}
_NOT_MEASURED = (
    "norms, activations, rotary embedding, embedding lookup, sampling, host time and launch gaps; spread of "
    "the timings; prefill attention over cached context; sequences of unequal length"
)


def import_aiconfigurator(
    root_or_wheel: str | Path, system: str, framework: str, out_dir: str | Path
) -> dict[str, int]:
    """Write the kernel tables of `system` ("h100_sxm", as the package calls it) measured with `framework`.

    `root_or_wheel` is the wheel (a zip), the installed package's folder, or the folder that contains it. Of
    each table the newest version of the framework is taken. Returns the rows written, by file name.
    """
    files = _package_files(Path(root_or_wheel))
    tables = _newest(files, system, framework)
    out, written = Path(out_dir), {}
    for name, parts in (
        ("gemm", [("gemm_perf", _gemm)]),
        ("attention", [("context_attention_perf", _prefill), ("generation_attention_perf", _decode)]),
        ("comm", [("custom_allreduce_perf", _all_reduce), ("nccl_perf", _all_gather)]),
    ):
        frames, sources = [], []
        for table, convert in parts:
            if table not in tables:
                raise UserError(f"{root_or_wheel}: no {table} of {framework} for {system}")
            path, read = tables[table]
            raw = _read(read())
            frames.append(convert(raw))
            sources.append({"table": str(path), "device": sorted(raw["device"].unique())})
        merged = _merge(frames)
        write_table(out / f"{name}.parquet", merged, _provenance(files, framework, sources))
        written[f"{name}.parquet"] = len(merged["time_us"])
    return written


class _Files(dict[PurePosixPath, Callable[[], bytes]]):
    """Readers of the package's files by path inside the package, and the package's version."""

    version: str = "unknown"


def _package_files(root: Path) -> _Files:
    files = _Files()
    if root.is_file() and zipfile.is_zipfile(root):
        archive = zipfile.ZipFile(root)
        for name in archive.namelist():
            package, _, inner = name.partition("/")
            if package in PACKAGES and inner:
                files[PurePosixPath(inner)] = lambda name=name: archive.read(name)  # type: ignore[misc]
        parts = root.name.split("-")
        files.version = parts[1] if len(parts) > 1 else "unknown"
    elif root.is_dir():
        base = next((root / p for p in PACKAGES if (root / p).is_dir()), root)
        for path in sorted(base.glob("systems/data/**/*.parquet")):
            files[PurePosixPath(path.relative_to(base))] = path.read_bytes
        for info in sorted(base.parent.glob("ai*_core-*.dist-info")):
            files.version = info.name.removesuffix(".dist-info").split("-")[1]
    if not files:
        raise UserError(f"{root} is neither the aiconfigurator-core package nor its wheel")
    return files


def _newest(files: _Files, system: str, framework: str) -> dict[str, tuple[PurePosixPath, Callable[[], bytes]]]:
    """Of each table, the newest version measured with `framework` (with NCCL for collectives)."""
    systems = {p.parts[2] for p in files if p.parts[:2] == ("systems", "data")}
    if system not in systems:
        raise UserError(f"unknown system {system!r}{suggest(system, systems)}")
    best: dict[str, tuple[tuple[int, ...], PurePosixPath]] = {}
    for path in files:
        if path.suffix != ".parquet" or path.parts[:3] != ("systems", "data", system):
            continue
        _, _, _, family, source, version, _ = path.parts
        if family not in ("gemm", "attention", "comm") or source not in (framework, "nccl"):
            continue
        number = tuple(int(x) for x in version.split(".") if x.isdigit())
        if path.stem not in best or number > best[path.stem][0]:
            best[path.stem] = (number, path)
    return {stem: (path, files[path]) for stem, (_, path) in best.items()}


def _read(data: bytes) -> Any:
    import pyarrow.parquet as pq

    return pq.read_table(io.BytesIO(data)).to_pandas()


def _gemm(raw: Any) -> Any:
    raw = raw[raw["gemm_dtype"].isin(_DTYPES)]
    return raw.assign(op="gemm", dtype=raw["gemm_dtype"].map(_DTYPES))


def _attention(raw: Any, op: str) -> Any:
    if "window_size" in raw:
        raw = raw[raw["window_size"] == 0]
    raw = raw[raw["kv_cache_dtype"].isin(_DTYPES) & (raw["beam_width"] == 1)]
    names = {"batch_size": "batch", "num_heads": "heads", "num_key_value_heads": "kv_heads"}
    return raw.rename(columns=names).assign(op=op, dtype=raw["kv_cache_dtype"].map(_DTYPES))


def _prefill(raw: Any) -> Any:
    raw = _attention(raw, "attention_prefill")
    return raw.assign(new_tokens=raw["isl"], past_tokens=0)


def _decode(raw: Any) -> Any:
    raw = _attention(raw, "attention_decode")
    return raw.assign(new_tokens=1, past_tokens=raw["step"])


def _all_reduce(raw: Any) -> Any:
    # The eager rows hold a host round trip per call; in an engine's captured or compiled step it is not paid.
    raw = raw[(raw["kernel_source"].str.endswith("graph")) & (raw["allreduce_dtype"] == "bfloat16")]
    return raw.assign(op="all_reduce", dtype="bf16", gpus=raw["num_gpus"], bytes=raw["message_size"])


def _all_gather(raw: Any) -> Any:
    raw = raw[(raw["op_name"] == "all_gather") & (raw["nccl_dtype"] == "half")]
    return raw.assign(op="all_gather", dtype="bf16", gpus=raw["num_gpus"], bytes=raw["message_size"])


def _merge(frames: list[Any]) -> dict[str, Any]:
    """The frames as columns of the schema: median of repeats, milliseconds to microseconds, sorted by key."""
    import pandas as pd

    merged = pd.concat(
        [f.rename(columns={"kernel_source": "kernel"}).assign(time_us=f["latency"] * 1e3) for f in frames]
    )
    keys = [c for c in KEY_COLUMNS if c in merged]
    shape = [c for c in keys if c != "kernel"]
    grouped = merged.groupby(shape, dropna=False, sort=True)
    median = grouped["time_us"].median().reset_index().assign(kernel=grouped["kernel"].first().to_numpy())
    return {c: [None if pd.isna(v) else v for v in median[c].astype(object)] for c in [*keys, "time_us"]}


def _provenance(files: _Files, framework: str, sources: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "project": "aiconfigurator-core",
        "project_version": files.version,
        "licence": "Apache-2.0",
        "framework": framework,
        "sources": sources,
        "imported": datetime.date.today().isoformat(),
        "changes": "columns renamed to the neutral schema, milliseconds to microseconds, repeats to their "
        "median, rows of other dtypes and of sliding windows left out",
        "not_measured": _NOT_MEASURED,
    }
