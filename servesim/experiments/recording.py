"""Recorded runs of real servers, in one common form for all formats."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servesim import untrusted
from servesim.errors import UserError, shown
from servesim.hardware import bundled_models, gpu_names, model_named

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

METRICS = ("ttft", "tpot", "e2el")
MOST_TURN_NS = 10_000_000
"""Maximum time from an answer to the request that it made room for. Clients of known closed loops took 0.03 to 0.16 ms
(1st to 99th percentile; 256 requests in flight, same host)."""
FLAT = 0.02
"""Maximum relative amount by which the number of requests in flight may fall below its peak, for at least a fraction
FLAT_SENDS of the sends after the peak is reached."""
FLAT_SENDS = 0.9


@dataclass(frozen=True)
class Server:
    """Server that was recorded, with its engine. None means not recorded or the engine's default."""

    model: str | None = None
    gpu: str | None = None
    tp: int = 1
    engine: str = "vllm"
    """Engine and version, such as "vllm 0.23.0"."""
    num_blocks: int | None = None
    block_size: int = 16
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    prefix_caching: bool = True
    asynchronous: bool = True
    moe_backend: str | None = None
    """Kernel of the routed experts."""
    dtype: str = "bf16"
    kv_dtype: str = "bf16"
    speculation: str = ""
    """Speculator that stands for the engine's own, or empty if there is none."""
    acceptance: str = ""
    """Acceptance according to the server's counters."""
    scheduler: str = "vllm"
    """Policy that stands for the engine's own scheduler, as written on the command line."""


@dataclass(frozen=True)
class RecordedRun:
    """Requests of one run in the order in which they were sent, with their recorded latencies."""

    name: str
    path: Path
    format: str
    server: Server
    arrival_ns: Ints
    """Time at which each request was sent, relative to the first one."""
    prompt_len: Ints
    output_len: Ints
    ttft_ms: Floats
    """TTFT of each request, NaN if not recorded."""
    e2el_ms: Floats
    prompt_id: Ints | None = None
    """Ids of the prompts. Prompts with the same id begin with the same tokens. None if all prompts are different."""
    concurrency: int | None = None
    """Number of clients that share the requests of a closed loop; in a replay, each client sends its next request when
    its last one is answered. None for an open loop."""
    at_engine: bool = False
    """Whether times were taken inside the engine, excluding its front end."""
    hit_rate: float | None = None
    """Share of prompt tokens that the server found in its prefix cache, or None if not recorded."""
    totals: dict[str, float] = field(default_factory=dict)
    """Aggregates recorded instead of per-request times: `ttft_mean`, ..., `output_throughput`."""
    unpriced: str = ""
    """Reason that the run cannot be replayed, or empty if it can be."""
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.prompt_len)

    @property
    def tpot_ms(self) -> Floats:
        """Time per output token after the first, NaN for requests with only one output token."""
        gaps = np.where(self.output_len > 1, self.output_len - 1, np.nan)
        return np.asarray((self.e2el_ms - self.ttft_ms) / gaps)


def tell_loop(run: RecordedRun) -> RecordedRun:
    """Return the run as a closed loop if it was recorded as an open one but the number of requests in flight stays at a
    cap and each request beyond the cap was sent right after an answer. Return any other run unchanged.

    If the requests of such a run were sent at their recorded times, they would queue up at a simulated server that is
    slower by a few percent, which the recorded client did not allow.
    """
    if run.concurrency is not None or len(run) < 3 or not np.isfinite(run.e2el_ms).all():
        return run
    sent, ends = run.arrival_ns, np.sort(run.arrival_ns + np.rint(run.e2el_ms * 1e6).astype(np.int64))
    in_flight = np.arange(1, len(sent) + 1) - np.searchsorted(ends, sent, side="right")
    cap = int(in_flight.max())
    reached = int(np.argmax(in_flight == cap))
    later = in_flight[reached:]
    if len(later) < max(len(sent) / 2, 2) or np.mean(later >= (1 - FLAT) * cap - 1) < FLAT_SENDS:
        return run
    turns = sent[cap:] - ends[: len(sent) - cap]
    turn = float(np.median(turns[max(reached - cap, 0) :])) if len(turns) else np.inf
    if not 0 <= turn <= MOST_TURN_NS:
        return run
    note = (
        f"a closed loop: {cap} requests are in flight from request {reached + 1} on, and each is sent "
        f"{turn / 1e6:.2g} ms (median) after an answer. The replay uses --max-concurrency {cap}, because requests "
        "sent at recorded times would pile up on a slower simulated server"
    )
    return replace(run, concurrency=cap, notes=(*run.notes, note))


def due_ns(run: RecordedRun) -> Ints:
    """Return the earliest time at which the replay may send each request. A client that runs a closed loop also waits
    for an answer before it sends another request; beyond the cap, it waits for nothing else."""
    if run.concurrency is None or not len(run):
        return run.arrival_ns
    return np.asarray(np.minimum(run.arrival_ns, run.arrival_ns[min(run.concurrency, len(run)) - 1]))


def csv_columns(path: Path) -> dict[str, list[str]]:
    """Return the columns of a CSV file by name. The file must have a header."""
    header, *rows = (row for row in untrusted.csv_rows(path, named=False) if row)
    untrusted.check_header(f"{path}: line 1", header)
    for i, row in enumerate(rows):
        if len(row) != len(header):
            raise UserError(f"{path}: line {i + 2}: {len(row)} fields instead of {len(header)}")
    return {name: [row[i] for row in rows] for i, name in enumerate(header)}


def numbers(columns: dict[str, list[str]], name: str, path: Path) -> Floats:
    """Return a numeric column. The error for an invalid value names its line."""
    values = np.empty(len(columns[name]))
    for i, text in enumerate(columns[name]):
        try:
            values[i] = float(text) if text else np.nan
        except ValueError:
            raise UserError(f"{path}: line {i + 2}: {name} is {shown(text)} but must be a number") from None
    return values


def settings_beside(path: Path, root: Path) -> dict[str, Any]:
    """Read `server_config.json` from the file's folder, or from the nearest folder above it up to `root`."""
    for folder in path.parents:
        if (config := folder / "server_config.json").is_file():
            return read_json(config)
        if folder == root:
            break
    return {}


def server_dtype(name: str | None) -> str:
    """Return servesim's name for a vLLM format. If none or "auto" is given, return the usual format of checkpoints."""
    known = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "fp8_e4m3": "fp8"}
    return known.get(name, name) if name and name != "auto" else "bf16"


def stated_server(path: Path, settings: dict[str, Any], model: str | None) -> Server:
    """Return the server described by the settings file next to a recording."""
    named = model_named(model) if model else None
    return Server(
        model=known_model(model),
        dtype=server_dtype((named.dtype if named is not None else None) or settings.get("dtype")),
        kv_dtype=server_dtype(settings.get("kv_cache_dtype")),
        gpu=gpu_of(path, settings),
        tp=int(settings.get("tensor_parallel_size") or 1),
        engine=settings.get("engine") or f"vllm {settings.get('vllm_version', '')}".strip(),
        num_blocks=settings.get("num_gpu_blocks"),
        block_size=int(settings.get("block_size") or 16),
        max_num_seqs=settings.get("max_num_seqs"),
        max_num_batched_tokens=settings.get("max_num_batched_tokens"),
        max_model_len=settings.get("max_seq_len") or settings.get("max_model_len"),
        prefix_caching=bool(settings.get("enable_prefix_caching", True)),
        moe_backend=settings.get("moe_backend"),
    )


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object."""
    loaded = untrusted.read_json(path)
    if not isinstance(loaded, dict):
        raise UserError(f"{path}: must be a JSON object")
    return loaded


def run_name(path: Path, root: Path) -> str:
    """Return a file's path relative to the folder, without suffixes."""
    name = path.relative_to(root).as_posix()
    for suffix in (".gz", ".zst", ".csv", ".tsv", ".jsonl", ".json", ".parquet"):
        name = name.removesuffix(suffix)
    return name


def known_model(name: str | None) -> str | None:
    """Return the bundled model for a Hugging Face name, or the name itself if no model matches."""
    if name is None:
        return None
    if (found := model_named(name)) is not None:
        return name if found.changes else found.model
    bare = re.sub(r"-v\d+(\.\d+)*$", "", name.split("/")[-1].lower()).removesuffix("-hf").removesuffix("-instruct")
    names = {_plain(model): model for model in bundled_models()}
    return names.get(_plain(bare)) or names.get(_plain(bare).removeprefix("meta")) or name


def known_gpu(text: str) -> str | None:
    """Return the GPU named in a text such as "H100 SXM", "RTXPRO6000" or a folder name `..._h200`."""
    plain = _plain(text)
    found = [gpu for gpu in gpu_names() if _plain(gpu) in plain]
    return max(found, key=len, default=None)


def gpu_of(path: Path, settings: dict[str, Any]) -> str | None:
    """Return the GPU that the settings name or, failing that, the GPU in the name of the nearest folder that
    contains one."""
    for key in ("gpu", "gpu_name", "hardware", "device"):
        if settings.get(key):
            return known_gpu(str(settings[key])) or str(settings[key])
    return next((gpu for folder in path.resolve().parents if (gpu := known_gpu(folder.name))), None)


def _plain(text: str) -> str:
    return "".join(c for c in text.lower() if c.isalnum())
