"""Kernel timings of the `aiconfigurator-core` package (NVIDIA, Apache-2.0) as kernel tables.

The package holds its measurements as Parquet at
`<package>/systems/data/<system>/<family>/<framework>/<version>/<table>.parquet`. Latencies are in milliseconds per
call, timed under a CUDA graph with 3 warm-up and 6 timed runs. The importer keeps the following, for all shapes:

- GEMMs;
- attention, with sliding windows separate from full attention;
- mixture-of-experts kernels, both without expert parallelism and with experts distributed over the GPUs of one server
  (Marlin on mxfp4 weights is separate from the Triton kernel, as `mxfp4_marlin`);
- latent attention with bf16 projections, and its kernel alone for two or more heads (16 over 8 GPUs);
- the convolution and recurrence of layers with a state (both in one row, if both were measured; not those of Mamba2);
- modules of sparse attention in FP8 blocks;
- the framework's all-reduce, NCCL's all-reduce, and all-gather.

The package counts messages in elements (its collectors allocate that many elements, or divide NCCL's bytes by two: rows
of dtype int8 take as long as rows of dtype half at twice the size); here they are converted to bytes. Only other
frameworks' tables have integer GEMMs, so these come from the newest of those tables. Block-scaled fp8 GEMMs come from
TensorRT-LLM, since vLLM's timings include kernel launches (55 us and more for the smallest, while a whole
latent-attention module with four of them takes 90 us). For experts of gpt-oss in mxfp4 with mxfp8 activations, SGLang's
timings are used if the framework's own were taken only with bf16 activations: both call FlashInfer's kernel. Repeated
measurements of one shape are replaced by their median, and several kernels by the fastest.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from packaging.version import Version

from servesim.calibrate.importers.aiconfigurator_experts import (
    DEALT,
    EXPERT_PARTS,
    OLDER,
    ROUTING,
    experts_of_others,
    new_shapes,
    older_tables,
)
from servesim.calibrate.importers.aiconfigurator_files import (
    BLOCK,
    DTYPES,
    SPARSE,
    Files,
    Found,
    newest,
    package_files,
    read_parquet,
)
from servesim.cost.tables import KEY_COLUMNS, write_table
from servesim.errors import UserError

_KV_DTYPES = ("bfloat16", "fp8")
_INTEGER = ("int4_wo", "int8_wo", "sq")
_NCCL = {"all_gather": "all_gather", "all_reduce": "all_reduce_nccl"}
"""NCCL operators that are kept, keyed by NCCL's own names."""
_ALL_REDUCE, _FUSED = "custom_allreduce_perf", "custom_allreduce_perf trtllm"
"""The framework's all-reduce, and TensorRT-LLM's, which vLLM calls in FlashInfer where it fuses all-reduce and norm."""
_BLACKWELL = ("b200_sxm", "gb200", "b300_sxm", "gb300")
_LATENT = ("mla_context_module_perf", "mla_generation_module_perf")
_LATENT_OF = {"b300_sxm": "gb300", "gb200": "b200_sxm"}
"""Systems whose latent attention is taken from another system with the same chip in a different server.
    Their own timings include kernel launches (a module over 16 sequences of 511 tokens takes 93 and 99 us on
    them, but 41 and 42 us on the systems used instead)."""
_LATENT_KERNEL, _BF16 = "generation_mla_perf", "_bf16"
_STATES = ("gdn_perf", "kda_perf")
_SPARSE = {"deepseek-ai/DeepSeek-V3.2": 7168, "zai-org/GLM-5": 6144, "zai-org/GLM-5-FP8": 6144}
"""Models with sparse attention, mapped to the width of their layers."""
_CAPTURED = 256
"""Maximum number of sequences in a decode under a CUDA graph in SGLang's sparse-attention rows. Larger batches take 1.3
ms for any context length, which is launch time."""
_ONE_KERNEL = ("vllm", "sglang")
_ON_HOPPER = ("h100_sxm", "h200_sxm")
"""Systems on which vLLM decodes latent attention over 16-bit keys and values with FlashAttention 3, as SGLang does.
SGLang's rows time the kernel alone. vLLM's own rows for these systems time a whole module with norms and rotation
launched one by one, "the never-in-serving native chain" (the package's collection_meta.yaml for B200, which has since
been remeasured): 83 us for one token on an H200, 34 on a B200."""
_DEEPEP = {"all_to_all_ll": "wideep_deepep_ll_perf", "all_to_all_ht": "wideep_deepep_normal_perf"}
_DEEPEP_SMS = 20
"""Number of multiprocessors that DeepEP's normal kernels use for communication (DeepEP's default)."""
_BOX = 8
"""GPUs per node in the DeepEP tables."""
_NOT_MEASURED = (
    "norms, activations, rotary embedding, embedding lookup, sampling, host time and launch gaps; spread of "
    "the timings; prefill attention over cached context; sequences of unequal length"
)


def import_aiconfigurator(
    root_or_wheel: str | Path, system: str, framework: str, out_dir: str | Path
) -> dict[str, int]:
    """Write the kernel tables of `system` ("h100_sxm", as the package calls it) measured with `framework`.

    `root_or_wheel` is the wheel (a zip), the installed package's folder, or the folder that contains it. The newest
    version of the framework is used for each table. Return the number of rows written, by file name.
    """
    files = package_files(Path(root_or_wheel))
    tables = newest(files, system, (framework, "nccl"))
    for table in _REQUIRED:
        if table not in tables:
            raise UserError(f"{root_or_wheel}: no {table} of {framework} for {system}")
    tables |= newest(files, system, None, "gemm_perf", _INTEGER)
    tables |= newest(files, system, ("trtllm",), "gemm_perf", (BLOCK,))
    if (sibling := _LATENT_OF.get(system)) is not None and _has_system(files, sibling):
        tables |= {key: found for key, found in newest(files, sibling, (framework,)).items() if key in _LATENT}
    if framework == _ONE_KERNEL[0] and system in _ON_HOPPER:
        others = newest(files, system, _ONE_KERNEL[1:], _LATENT_KERNEL)
        tables |= {f"{key}{_BF16}": found for key, found in others.items()}
    if framework == "vllm":  # one copy per GPU
        tables |= _deepep_of(files, system)
        if system in _BLACKWELL and _ALL_REDUCE in (theirs := newest(files, system, ("trtllm",))):
            tables[_FUSED] = theirs[_ALL_REDUCE]
    tables |= _states_of(files, system, framework, tables)
    tables |= older_tables(files, system, framework)
    tables |= experts_of_others(framework, newest(files, system, ("sglang",)), tables)
    written = {}
    for name, parts in FILES:
        found = [(convert, *tables[key]) for key, convert in parts if key in tables]
        rows = write_file(files, found, Path(out_dir) / f"{name}.parquet")
        if rows:
            written[f"{name}.parquet"] = rows
    return written


def _deepep_of(files: Files, system: str) -> Found:
    """Return SGLang's measurements of DeepEP, which stand for any framework: the library is the same, and vLLM's
    timings include kernel launches (32 tokens on 8 H200s: 103 us instead of 45). `+` marks the older measurements,
    which cover several nodes."""
    found: Found = {}
    for stem in _DEEPEP.values():
        paths = [path for path in files if path.parts[2:5] == (system, "comm", "sglang") and path.stem == stem]
        paths.sort(key=lambda path: Version(path.parts[5]))
        for name, path in zip((stem, f"{stem}+"), reversed(paths), strict=False):
            found[name] = (path, files[path])
    return found


def _states_of(files: Files, system: str, framework: str, tables: Found) -> Found:
    """Return SGLang's measurements of layers with a state and of sparse attention where the framework has none, or
    where vLLM's timings include kernel launches: the convolution of Kimi delta attention (783 us for one token on an
    H200) and sparse attention (191 us, compared with SGLang's 66)."""
    theirs = newest(files, system, _ONE_KERNEL[1:])
    launched = (_STATES[1], *SPARSE) if framework == _ONE_KERNEL[0] else (_STATES[1],)
    wanted = (*_STATES, *SPARSE)
    return {key: theirs[key] for key in wanted if key in theirs and (key in launched or key not in tables)}


def _has_system(files: Files, system: str) -> bool:
    return any(path.parts[:3] == ("systems", "data", system) for path in files)


def write_file(files: Files, found: list[tuple[Any, PurePosixPath, Any]], path: Path) -> int:
    """Convert the tables `found` into one file at `path` and return its number of rows; write no file if there are
    none."""
    frames: list[Any] = []
    sources: list[dict[str, Any]] = []
    for convert, source, read in found:
        raw = read_parquet(read()).assign(version=source.parts[5])
        frame = new_shapes(convert, raw, frames) if path.stem in ("moe", "sparse") else convert(raw)
        if len(frame):
            frames.append(frame)
            entry = {"table": str(source), "framework": source.parts[4], "framework_version": source.parts[5]}
            sources.append({**entry, "device": sorted(raw["device"].unique())})
    if not frames:
        return 0
    merged = _merge(frames)
    write_table(path, merged, _provenance(files, sources))
    return len(merged["time_us"])


def _gemm(raw: Any) -> Any:
    raw = raw[raw["gemm_dtype"].isin(["bfloat16", "fp8"])]
    return raw.assign(op="gemm", dtype=raw["gemm_dtype"].map(DTYPES))


def _gemm_in(dtype: str) -> Callable[[Any], Any]:
    return lambda raw: raw[raw["gemm_dtype"] == dtype].assign(op="gemm", dtype=DTYPES[dtype])


def _attention(raw: Any, op: str, full: bool) -> Any:
    window = raw["window_size"] if "window_size" in raw else raw["step"] * 0
    raw = raw.assign(window=window)[(window == 0) == full]
    raw = raw[raw["kv_cache_dtype"].isin(_KV_DTYPES) & (raw["beam_width"] == 1)]
    names = {"batch_size": "batch", "num_heads": "heads", "num_key_value_heads": "kv_heads"}
    kind = {"op": op if full else op.replace("attention", "window"), "dtype": raw["kv_cache_dtype"].map(DTYPES)}
    raw = raw.rename(columns=names).assign(**kind)
    return raw.drop(columns="window") if full else raw


def _latent(raw: Any, op: str) -> Any:
    raw = raw[raw["kv_cache_dtype"].isin(_KV_DTYPES) & (raw["gemm_type"] == "bfloat16")]
    names = {"batch_size": "batch", "num_heads": "heads"}
    return raw.rename(columns=names).assign(op=op, dtype=raw["kv_cache_dtype"].map(DTYPES))


def _latent_prefill(raw: Any) -> Any:
    raw = _latent(raw, "mla_prefill")
    return raw.assign(new_tokens=raw["isl"], past_tokens=0)


def _latent_decode(raw: Any) -> Any:
    # here `step` includes the computed token; in the attention tables it does not
    raw = _latent(raw, "mla_decode")
    return raw.assign(new_tokens=1, past_tokens=raw["step"] - 1)


def _latent_kernel(raw: Any, op: str) -> Any:
    raw = raw[raw["kv_cache_dtype"].isin(_KV_DTYPES) & (raw["mla_dtype"] == "bfloat16") & (raw["num_heads"] > 1)]
    names = {"batch_size": "batch", "num_heads": "heads"}
    return raw.rename(columns=names).assign(op=op, dtype=raw["kv_cache_dtype"].map(DTYPES))


def _latent_kernel_prefill(raw: Any) -> Any:
    raw = _latent_kernel(raw, "mla_kernel_prefill")
    return raw.assign(new_tokens=raw["isl"], past_tokens=0)


def _latent_kernel_decode(raw: Any) -> Any:
    raw = _latent_kernel(raw, "mla_kernel_decode")
    return raw.assign(new_tokens=1, past_tokens=raw["step"])


def _latent_kernel_decode_bf16(raw: Any) -> Any:
    return _latent_kernel_decode(raw[raw["kv_cache_dtype"] == "bfloat16"])


def _prefill(raw: Any, full: bool = True) -> Any:
    raw = _attention(raw, "attention_prefill", full)
    return raw.assign(new_tokens=raw["isl"], past_tokens=0)


def _decode(raw: Any, full: bool = True) -> Any:
    raw = _attention(raw, "attention_decode", full)
    return raw.assign(new_tokens=1, past_tokens=raw["step"])


def _all_reduce(raw: Any, op: str = "all_reduce") -> Any:
    # The eager rows include a host round trip per call, which an engine's captured or compiled step avoids.
    raw = raw[~raw["kernel_source"].str.endswith("eager") & (raw["allreduce_dtype"] == "bfloat16")]
    return raw.assign(op=op, dtype="bf16", gpus=raw["num_gpus"], bytes=2 * raw["message_size"])


def _nccl(raw: Any) -> Any:
    raw = raw[raw["op_name"].isin(_NCCL) & (raw["nccl_dtype"] == "half")]
    return raw.assign(op=raw["op_name"].map(_NCCL), dtype="bf16", gpus=raw["num_gpus"], bytes=2 * raw["message_size"])


def _deepep(raw: Any, op: str, nodes: int) -> Any:
    raw = raw[raw["node_num"] == 1] if nodes == 1 else raw[raw["node_num"] >= nodes]
    if op == "all_to_all_ht":
        raw = raw[(raw["dispatch_sms"] == _DEEPEP_SMS) & (raw["combine_sms"] == _DEEPEP_SMS)]
        ways: tuple[str, ...] = (
            "dispatch_transmit_us",
            "dispatch_notify_us",
            "combine_transmit_us",
            "combine_notify_us",
        )
    else:
        ways = ("dispatch_avg_t_us", "combine_avg_t_us")
    names = {"num_token": "m", "hidden_size": "k", "num_topk": "topk", "num_experts": "experts"}
    found = raw.rename(columns=names).assign(op=op, dtype="bf16", gpus=_BOX * raw["node_num"])
    return found.assign(latency=sum(raw[way] for way in ways) / 1e3)


def _sparse(raw: Any, op: str) -> Any:
    """Return rows of whole modules with block-scaled FP8 GEMMs, distinguished by the model's width; prompts have no
    cached tokens."""
    width = raw["model"].map(_SPARSE)
    raw = raw[width.notna() & (raw["gemm_type"] == BLOCK) & raw["kv_cache_dtype"].isin(_KV_DTYPES)]
    raw = raw[raw["op_name"].str.endswith("_module")].assign(step=raw["step"].astype(int))
    decode = op == "dsa_decode"
    raw = raw[raw["batch_size"] <= _CAPTURED] if decode else raw[raw["step"] == 0]
    named = raw.rename(columns={"batch_size": "batch", "num_heads": "heads"})
    return named.assign(
        op=op,
        dtype=raw["kv_cache_dtype"].map(DTYPES),
        k=width,
        new_tokens=raw["isl"],
        past_tokens=raw["step"],
        latency=_four_digits(raw["latency"]),
    )


def _four_digits(latency: Any) -> Any:
    """Return times rounded to four significant digits, that is, to within a hundredth of the variation between
    repeats."""
    digits = 10.0 ** (3 - np.floor(np.log10(latency)))
    return np.round(latency * digits) / digits


def _states(raw: Any, kind: str) -> Any:
    """Return the total time of convolution and recurrence per shape, with the fastest kernel of each."""
    kernel = raw["kernel_source"].mask(raw["kernel_source"].str.contains("conv1d"), "conv1d")
    raw = raw[raw["phase"].isin(["context", "generation"])].assign(kernel_source=kernel)
    raw = raw.rename(columns={"batch_size": "batch", "num_v_heads": "heads", "num_k_heads": "kv_heads"})
    raw = raw.rename(columns={"head_k_dim": "head_dim", "seq_len": "new_tokens"})
    shape = ["phase", "batch", "new_tokens", "heads", "kv_heads", "head_dim"]
    each = raw.groupby([*shape, "kernel_source"])["latency"].median().reset_index()
    each = each.assign(conv=each["kernel_source"] == "conv1d")
    parts = each.groupby([*shape, "conv"]).agg(latency=("latency", "min"), kernel_source=("kernel_source", "first"))
    both = parts.reset_index().groupby(shape)
    found = both.agg(latency=("latency", "sum"), n=("latency", "size"), kernel_source=("kernel_source", "first"))
    found = found[found["n"] == 2].drop(columns="n").reset_index()
    op = found["phase"].map({"context": f"{kind}_prefill", "generation": f"{kind}_decode"})
    return found.drop(columns="phase").assign(
        op=op, dtype="bf16", past_tokens=0, latency=_four_digits(found["latency"])
    )


_REQUIRED = (
    "gemm_perf",
    "context_attention_perf",
    "generation_attention_perf",
    "custom_allreduce_perf",
    "nccl_perf",
)
FILES: tuple[tuple[str, list[tuple[str, Callable[[Any], Any]]]], ...] = (
    ("gemm", [("gemm_perf", _gemm)]),
    ("gemm_nvfp4", [("gemm_perf", _gemm_in("nvfp4"))]),
    ("gemm_block", [(BLOCK, _gemm_in(BLOCK))]),
    ("gemm_integer", [(dtype, _gemm_in(dtype)) for dtype in _INTEGER]),
    ("moe", EXPERT_PARTS),
    ("attention", [("context_attention_perf", _prefill), ("generation_attention_perf", _decode)]),
    (
        "window",
        [
            ("context_attention_perf", partial(_prefill, full=False)),
            ("generation_attention_perf", partial(_decode, full=False)),
        ],
    ),
    ("mla", [("mla_context_module_perf", _latent_prefill), ("mla_generation_module_perf", _latent_decode)]),
    (
        "mla_kernel",
        [
            ("context_mla_perf", _latent_kernel_prefill),
            (_LATENT_KERNEL, _latent_kernel_decode),
            (_LATENT_KERNEL + _BF16, _latent_kernel_decode_bf16),
        ],
    ),
    ("state", [(stem, partial(_states, kind=stem.removesuffix("_perf"))) for stem in _STATES]),
    (
        "sparse",
        [
            (stem + "+" * i, partial(_sparse, op=op))
            for i in range(OLDER + 1)
            for stem, op in zip(SPARSE, ("dsa_prefill", "dsa_decode"), strict=True)
        ],
    ),
    (
        "comm",
        [
            (_ALL_REDUCE, _all_reduce),
            ("nccl_perf", _nccl),
            (_FUSED, partial(_all_reduce, op="all_reduce_fused")),
        ],
    ),
    (
        "all_to_all",
        [
            (f"{stem}{'+' * (nodes > 1)}", partial(_deepep, op=op, nodes=nodes))
            for op, stem in _DEEPEP.items()
            for nodes in (1, 2)
        ],
    ),
)
"""Sources of each output file: the source table (for GEMMs of other frameworks, the dtype) and its conversion."""


def _merge(frames: list[Any]) -> dict[str, Any]:
    """Return the frames as columns of the schema: medians of repeats, of several kernels the fastest, milliseconds
    converted to microseconds, sorted by key."""
    import pandas as pd

    merged = pd.concat(
        [f.rename(columns={"kernel_source": "kernel"}).assign(time_us=f["latency"] * 1e3) for f in frames]
    )
    keys = [c for c in KEY_COLUMNS if c in merged]
    shape = [c for c in keys if c != "kernel"]
    medians = merged.groupby([*shape, "kernel"], dropna=False, sort=True)["time_us"].median().reset_index()
    fastest = medians.sort_values("time_us", kind="stable").drop_duplicates(shape).sort_values(shape, kind="stable")
    return {c: [None if pd.isna(v) else v for v in fastest[c].astype(object)] for c in [*keys, "time_us"]}


def _provenance(files: Files, sources: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "project": files.project,
        "project_version": files.version,
        "licence": "Apache-2.0",
        "framework": ", ".join(sorted({source["framework"] for source in sources})),
        "sources": sources,
        "imported": datetime.date.today().isoformat(),
        "changes": "columns renamed to the neutral schema, milliseconds converted to microseconds, repeats replaced by "
        "their median, several kernels by the fastest; left out: rows of other dtypes, of expert parallelism over more "
        f"than {max(DEALT)} GPUs and of routing other than {ROUTING}",
        "not_measured": _NOT_MEASURED,
    }
