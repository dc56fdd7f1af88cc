"""Kernel tables: measured times of the operators of a dense decoder on one device.

One schema for every operator and every source. A table set is a folder of Parquet files with the columns below; columns
that an operator does not use are null. Times are microseconds of one call on one GPU.

| column | type | meaning |
|---|---|---|
| op | string | `gemm`, `moe`, `moe_ep` (expert parallelism, on its most loaded GPU), `attention_prefill`,
`attention_decode`, `attention_mixed` (decodes and one prompt in one call), `attention_skew` (decodes of unequal
contexts, alone or next to one prompt), `window_prefill`, `window_decode` (attention limited to a window),
`mla_prefill`, `mla_decode` (latent attention with its projections), `mla_kernel_prefill`, `mla_kernel_decode` (its
kernel alone), `gdn_prefill`, `gdn_decode`, `kda_prefill`, `kda_decode` (convolution and recurrence of layers that keep
a state), `dsa_prefill`, `dsa_decode` (sparse attention with its projections; k: hidden size), `all_reduce` (as the
engine chooses among its kernels), `all_reduce_fused` (a kernel that can also normalize), `all_reduce_nccl`,
`all_gather`, `all_to_all_ll`, `all_to_all_ht` (DeepEP's dispatch to the experts' GPUs and combine, in low-latency and
high-throughput mode), `norm` (with the residual addition), `activation`, `rotary`, `kv_write`, `embedding`, `sampler` |
| dtype | string | of weights and activations (gemm, moe: `bf16`, `fp8`, `fp8_block`, `int8`, `int8_wo`, `int4`,
`mxfp4`, `fp32`), of keys and values (attention: `bf16`, `fp8`, `fp32`), of activations (small operators), of the
message |
| m, n, k | int32 | gemm: tokens, output width, input width; moe: tokens, width of an expert on this GPU, hidden
size; all_to_all: tokens of each GPU, hidden size (no n); norm, activation, rotary, kv_write, embedding, sampler: rows,
output width (no k) |
| experts, topk | int32 | moe, moe_ep, all_to_all: experts on all GPUs, and how many of them a token uses |
| window | int32 | window_*: tokens attended to |
| longest | int32 | attention_skew: the largest of the past_tokens |
| batch | int32 | attention: sequences of the call (mixed: decoding sequences) |
| new_tokens | int32 | attention: query tokens of each sequence (1 in decode; mixed, skew: of the prompt, none cached;
skew: 0 without one) |
| past_tokens | int32 | attention: tokens of each sequence already in the KV cache (mixed: of each decoding sequence;
skew: their mean; a row whose longest is the mean has equal contexts) |
| heads, kv_heads, head_dim | int32 | attention: on this GPU, after tensor parallelism; gdn, kda: heads of values, heads
of keys, and the width of both |
| gpus | int32 | moe_ep: GPUs over which whole experts are distributed; all_reduce, all_reduce_fused, all_reduce_nccl,
all_gather: participating GPUs (all_to_all, too) |
| bytes | int64 | all_reduce, all_reduce_fused, all_reduce_nccl: size of the tensor; all_gather: size of the gathered
result |
| kernel | string | the measured kernel |
| time_us | float64 | median time of one call |
| p10_us, p90_us | float64 | spread of the underlying timings; only in tables of `servesim calibrate profile` |
| samples | int32 | number of these timings |

A folder inside a folder of shipped tables holds rows of another version of the engine: for each (op, dtype) that it
has, its rows replace those of the folder around it.

The provenance is in the Parquet metadata under the key `servesim` (JSON): device, source and its version, license,
framework and its version, date of import, a list of the unmeasured operators, and (`relative_error`) the relative
standard error of a time if the source repeats its measurements.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servesim.cost.checks import checked
from servesim.errors import UserError

KEY_COLUMNS = (
    "op",
    "dtype",
    "m",
    "n",
    "k",
    "batch",
    "new_tokens",
    "past_tokens",
    "heads",
    "kv_heads",
    "head_dim",
    "gpus",
    "bytes",
    "experts",
    "topk",
    "window",
    "longest",
    "kernel",
)
COLUMNS = (*KEY_COLUMNS, "time_us")
_TEXT = ("op", "dtype", "kernel")
_OPTIONAL = ("experts", "topk", "window", "longest")
"""Columns that the table of a dense decoder may lack."""
SPREAD = ("p10_us", "p90_us", "samples")
"""Columns that only tables whose source states the spread have."""
METADATA_KEY = b"servesim"

Rows = dict[str, NDArray[Any]]
"""Columns by name."""


def schema(spread: bool = False) -> Any:
    """Return the pyarrow schema of every kernel table, including the columns of the spread if `spread` is set."""
    import pyarrow as pa

    def kind(name: str) -> Any:
        if name in _TEXT:
            return pa.string()
        if name.endswith("_us"):
            return pa.float64()
        return pa.int64() if name == "bytes" else pa.int32()

    return pa.schema([(name, kind(name)) for name in (*COLUMNS, *(SPREAD if spread else ()))])


def write_table(path: Path, columns: dict[str, Any], provenance: dict[str, Any]) -> None:
    """Write one Parquet file: `columns` by name (missing ones become null), `provenance` as metadata."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    length = len(columns["time_us"])
    fields = schema(spread=SPREAD[0] in columns)
    arrays = [pa.array(columns[f.name], type=f.type) if f.name in columns else pa.nulls(length, f.type) for f in fields]
    metadata = {METADATA_KEY: json.dumps(provenance, sort_keys=True).encode()}
    table = pa.Table.from_arrays(arrays, schema=fields.with_metadata(metadata))
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".partial")
    repeated = [name for name in table.column_names if not name.endswith("_us")]  # not times
    pq.write_table(
        table, scratch, compression="zstd", compression_level=19, write_statistics=False, use_dictionary=repeated
    )
    scratch.replace(path)


@dataclass(frozen=True)
class KernelTables:
    """Kernel tables of one device, read when one of their operators is first requested."""

    folder: Path
    trusted: bool = False
    """Whether these are the shipped tables, whose rows have been checked by tests."""

    @classmethod
    def load(cls, name: str | None = None, folder: str | Path | None = None) -> KernelTables:
        """Load the shipped tables called `name`, or the tables in a user's folder (or shipped under the folder's
        name)."""
        if folder is None:
            return _shipped(str(name))
        path = Path(folder)
        if not any(path.glob("*.parquet")):
            if path.name == str(folder) and any(_shipped(path.name).folder.glob("*.parquet")):
                return _shipped(path.name)
            raise UserError(f"{path} contains no kernel tables (*.parquet)")
        return cls(path)

    def loaded(self) -> KernelTables:
        """Read all files, so that they are no longer needed, and return these tables."""
        _ = self._by_op, self.provenance
        return self

    def with_rows(self, op: str, dtype: str, rows: Rows) -> KernelTables:
        """Return these tables with the rows for one operator in one dtype replaced."""
        copy = KernelTables(self.folder, self.trusted)
        copy.__dict__["_by_op"] = {**self._by_op, (op, dtype): rows}
        return copy

    def rows(self, op: str, dtype: str) -> Rows:
        """Return the rows of one operator in one dtype as numpy columns without nulls; empty if it was not measured."""
        return self._by_op.get((op, dtype), {})

    def widths(self, op: str, dtype: str) -> Sequence[tuple[int, int]]:
        """Return the measured pairs (n, k) of one operator in one dtype, in order."""
        found = self._widths.get((op, dtype))
        if found is None:
            rows = self.rows(op, dtype)
            pairs = np.unique(rows["n"].astype(np.int64) << 32 | rows["k"])  # 20 times as fast as a set of tuples
            found = self._widths[op, dtype] = [(pair >> 32, pair & 0xFFFFFFFF) for pair in pairs.tolist()]
        return found

    @cached_property
    def _widths(self) -> dict[tuple[str, str], Sequence[tuple[int, int]]]:
        return {}

    @property
    def measured(self) -> list[tuple[str, str]]:
        """Set of (operator, dtype) pairs that were measured."""
        return sorted(self._by_op)

    def dtypes(self, op: str) -> list[str]:
        """Return the dtypes in which `op` was measured."""
        return sorted(dtype for name, dtype in self._by_op if name == op)

    @property
    def files(self) -> dict[str, Path]:
        """Paths of the files by name. Tables of another version come after those around them, whose rows they
        replace."""
        around = sorted(self._around.glob("*.parquet")) if self._around is not None else []
        prefix = f"{self.folder.name}/" if around else ""
        own = sorted(self.folder.glob("*.parquet"))
        return {path.name: path for path in around} | {f"{prefix}{path.name}": path for path in own}

    @property
    def name(self) -> str:
        """Name of shipped tables, or of a user's folder."""
        return self.folder.name if self._around is None else f"{self._around.name}/{self.folder.name}"

    @property
    def _around(self) -> Path | None:
        """Folder of the shipped tables that contains these, or None if they are not another version's."""
        return self.folder.parent if self.trusted and any(self.folder.parent.glob("*.parquet")) else None

    @cached_property
    def provenance(self) -> dict[str, dict[str, Any]]:
        """Provenance stated in each file, by file name."""
        import pyarrow.parquet as pq

        found = {}
        for name, path in self.files.items():
            metadata = pq.read_schema(path).metadata or {}
            found[name] = json.loads(metadata.get(METADATA_KEY, b"{}"))
        return found

    @property
    def relative_error(self) -> float | None:
        """Relative standard error of a time: the largest stated in any file (`relative_error` of its provenance, from
        repeated measurements), or None if no file states one."""
        stated = [entry.get("relative_error") for entry in self.provenance.values()]
        return max((float(error) for error in stated if error is not None), default=None)

    @property
    def without_error(self) -> list[str]:
        """Files without a stated error."""
        return [name for name, entry in self.provenance.items() if entry.get("relative_error") is None]

    @cached_property
    def _by_op(self) -> dict[tuple[str, str], Rows]:
        found: dict[tuple[str, str], Rows] = {}
        for path in self.files.values():
            found.update(_split(path, self.trusted))
        return found


def _split(path: Path, trusted: bool) -> dict[tuple[str, str], Rows]:
    """Read one file as numpy columns by (op, dtype), leaving out columns of nulls."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    # read_table, to_numpy and the conversion of a Python value to Arrow would all import pandas
    try:
        with pq.ParquetFile(path, read_dictionary=list(_TEXT) if trusted else None) as file:
            table = file.read()
    except (OSError, pa.ArrowInvalid) as error:
        raise UserError(f"kernel table {path} is not a readable Parquet file: {error}") from None
    present = [name for name in COLUMNS if name in table.column_names]
    missing = [name for name in COLUMNS if name not in present and name not in _OPTIONAL]
    if missing:
        raise UserError(f"kernel table {path}: column {missing[0]!r} is missing")
    if unnamed := next((name for name in ("op", "dtype") if table[name].null_count), ""):
        raise UserError(f"kernel table {path}: a row has no {unnamed!r}")
    if not trusted:
        table = checked(path, table, KEY_COLUMNS)
    ops, dtypes = (table[name].combine_chunks().dictionary_encode() for name in ("op", "dtype"))
    op, dtype = (np.from_dlpack(names.indices).astype(np.int64) for names in (ops, dtypes))
    codes = op << 32 | dtype
    order = np.argsort(codes, kind="stable")
    if (np.diff(order) != 1).any():  # rows of an operator apart from each other
        table = table.take(pa.Array.from_buffers(pa.int64(), len(order), [None, pa.py_buffer(order)]))
    found = {}
    values, begins, counts = np.unique(codes[order], return_index=True, return_counts=True)
    for code, begin, count in zip(values.tolist(), begins.tolist(), counts.tolist(), strict=True):
        rows = table.slice(begin, count)
        full = [n for n in present if n not in _TEXT and not rows[n].null_count]
        key = ops.dictionary[code >> 32].as_py(), dtypes.dictionary[code & 0xFFFFFFFF].as_py()
        found[key] = {n: np.from_dlpack(rows[n].combine_chunks()) for n in full}
    return found


@cache
def _shipped(name: str) -> KernelTables:
    """Return shipped tables, which stay in memory once read because every run of a sweep uses the same ones."""
    folder = Path(str(resources.files("servesim.calibrate.tables"))) / name
    return KernelTables(folder, trusted=True)
