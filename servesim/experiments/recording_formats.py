"""Readers of recorded runs, with one function per format. A file's content determines which one reads it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from servesim.errors import UserError
from servesim.experiments.recording import (
    RecordedRun,
    Server,
    csv_columns,
    gpu_of,
    known_gpu,
    known_model,
    numbers,
    read_json,
    run_name,
    server_dtype,
    settings_beside,
    stated_server,
    tell_loop,
)
from servesim.experiments.recording_vllm_bench import BENCH, read_bench, with_lengths
from servesim.plugins.trust import check_code
from servesim.untrusted import json_value, parse_yaml, read_text

CHUNK_TIMES = {"send_time_us", "first_chunk_time_us", "last_chunk_time_us", "output_tokens"}
ENGINE_TIMES = {"input_toks", "output_toks", "queued_ts", "first_token_ts", "last_token_ts"}
SPANS = {"arrival_time_us", "input_tokens", "output_tokens", "ttft_s", "e2e_s"}
PACKED = (".gz", ".zst")
SUFFIXES = (".csv", ".tsv", ".json", ".jsonl", ".parquet")

CHUNK_MAX_NUM_SEQS = 256
"""Assumed max_num_seqs of recorded servers whose settings do not state it (from the description of the data set)."""
SPANS_ENGINE = "vllm 0.15.1"
SPANS_PROMPTS = 100
"""Number of distinct prompts that CSV runs with arrival, TTFT and E2E cycle through: a row's prompt is its index modulo
this."""


def read_folder(folder: Path) -> list[RecordedRun]:
    """Read every recorded run in a folder (or the one in a file), in order of path."""
    if folder.is_file():
        paths, root = [folder], folder.parent
    elif folder.is_dir():
        paths, root = sorted(p for p in folder.rglob("*") if p.is_file() and is_recording_name(p.name)), folder
    else:
        raise UserError(f"{folder}: no such folder")
    runs = [run for path in paths if (run := read_run(path, root, folder.is_file())) is not None]
    if not runs:
        raise UserError(
            f"{folder}: no recorded run with latencies found (vllm bench serve, AIPerf, GuideLLM, GenAI-Perf, "
            "inference-perf, OpenTelemetry, or a log with a column such as latency_ms or ttft_ms)"
        )
    return with_lengths(runs)


def is_recording_name(name: str) -> bool:
    """Return whether a file with this name may hold a recorded run."""
    bare = next((name.removesuffix(packed) for packed in PACKED if name.endswith(packed)), name)
    return bare.endswith(SUFFIXES)


def read_run(path: Path, root: Path, alone: bool = False) -> RecordedRun | None:
    """Read the run in a file, or return None if it holds something else. `alone` means that the file was requested by
    name, so that any log with latencies counts as a recorded run."""
    run = None if path.name.endswith(".parquet") else _by_keys(path, root)
    run = _read_tool(path, root, alone) if run is None else run
    return None if run is None else tell_loop(_ordered(run))


def _by_keys(path: Path, root: Path) -> RecordedRun | None:
    """Read a run whose format is recognized by its first keys or columns."""
    text = read_text(path)
    first = text[:4096].lstrip()
    if first.startswith("{"):
        keys = _json_keys(text)
        readers = [(ENGINE_TIMES, _engine_times), (BENCH, read_bench)]
    else:
        keys = set(first.split("\n", 1)[0].strip().split(","))
        readers = [(CHUNK_TIMES, _chunk_times), (SPANS, _spans)]
    for wanted, reader in readers:
        if wanted <= keys:
            return reader(path, root)
    return None


def _read_tool(path: Path, root: Path, alone: bool) -> RecordedRun | None:
    """Read a recorded run from an AIPerf, GuideLLM, GenAI-Perf, inference-perf, OpenTelemetry or Baseten file or, if
    `alone` is set, from any log with latencies. Return None if the file holds no latencies."""
    from servesim.traces.formats import detect_format, formats

    try:
        module = formats()[detect_format(path)]
    except UserError:
        return None
    if not hasattr(module, "recorded") or (getattr(module, "LOOSE", False) and not alone):
        return None
    log = module.recorded(path)
    if np.isnan(log.e2el_ms).all() and np.isnan(log.ttft_ms).all():
        return None
    settings = settings_beside(path, root)
    return RecordedRun(
        name=run_name(path, root),
        path=path,
        format=module.NAME,
        server=stated_server(path, settings, log.model or settings.get("model")),
        arrival_ns=log.start_ns,
        prompt_len=log.prompt,
        output_len=log.output,
        ttft_ms=log.ttft_ms,
        e2el_ms=log.e2el_ms,
        concurrency=log.concurrency,
        notes=log.notes,
    )


def _json_keys(text: str) -> set[str]:
    """Return the keys of the first JSON object in a text."""
    try:
        first, _ = json.JSONDecoder().raw_decode(text.lstrip())
    except (ValueError, RecursionError):
        return set()
    return set(first) if isinstance(first, dict) else set()


def _ordered(run: RecordedRun) -> RecordedRun:
    """Sort rows by sending time, and check their times and the server's policies."""
    check_code([run.server.scheduler, run.server.speculation, run.server.acceptance], str(run.path))
    for name, least in (("prompt_len", 1), ("output_len", 1), ("ttft_ms", 0), ("e2el_ms", 0)):
        values = getattr(run, name)
        bad = np.flatnonzero(values < least)
        if len(bad):
            said = f"{name} is {values[bad[0]]} but must be at least {least}"
            raise UserError(f"{run.path}: request {bad[0]}: {said}")
    order = np.argsort(run.arrival_ns, kind="stable")
    columns = ("arrival_ns", "prompt_len", "output_len", "ttft_ms", "e2el_ms", "prompt_id")
    picked = {name: getattr(run, name)[order] for name in columns if getattr(run, name) is not None}
    picked["arrival_ns"] = picked["arrival_ns"] - (picked["arrival_ns"][:1].sum() if len(order) else 0)
    return replace(run, **picked)


def _chunk_times(path: Path, root: Path) -> RecordedRun:
    """Read a streaming client's CSV file, with the times (epoch us) at which a request was sent and its first and last
    chunks were received."""
    columns = csv_columns(path)
    send, first, last = (numbers(columns, f"{name}_time_us", path) for name in ("send", "first_chunk", "last_chunk"))
    prompt = numbers(columns, "server_input_tokens" if "server_input_tokens" in columns else "input_tokens", path)
    output = numbers(columns, "output_tokens", path)
    status = np.array(columns.get("status", ["ok"] * len(send)))
    ok = (status == "ok") & np.isfinite(send + first + last + prompt) & (output >= 1)
    settings = settings_beside(path, root)
    server = replace(
        stated_server(path, settings, settings.get("model")),
        max_num_seqs=settings.get("max_num_seqs", CHUNK_MAX_NUM_SEQS),
    )
    return RecordedRun(
        name=run_name(path, root),
        path=path,
        format="chunk times",
        server=server,
        arrival_ns=np.rint((send[ok] - send[ok].min()) * 1e3).astype(np.int64) if ok.any() else np.zeros(0, np.int64),
        prompt_len=prompt[ok].astype(np.int64),
        output_len=output[ok].astype(np.int64),
        ttft_ms=(first - send)[ok] / 1e3,
        e2el_ms=(last - send)[ok] / 1e3,
        concurrency=_clients(columns, path),
        notes=() if ok.all() else (f"{int((~ok).sum())} of {len(ok)} requests failed and were skipped",),
    )


def _clients(columns: dict[str, list[str]], path: Path) -> int | None:
    """Return the number of clients in a closed loop if a column states it, or None."""
    if not columns.get("max_concurrency"):
        return None
    stated = numbers(columns, "max_concurrency", path)
    if not (stated == stated[0]).all() or not 1 <= stated[0] <= 1 << 30:
        raise UserError(f"{path}: max_concurrency must be one number of at least 1 in all lines")
    return int(stated[0])


def _engine_times(path: Path, root: Path) -> RecordedRun:
    """Read a JSONL file with an engine's internal times (in seconds): queued, scheduled, first and last token."""
    rows = []
    for i, line in enumerate(read_text(path).splitlines()):
        if line.strip():
            try:
                row = json_value(line)
                rows.append([float(row[key]) for key in sorted(ENGINE_TIMES)])
            except (ValueError, KeyError, TypeError) as error:
                raise UserError(f"{path}: line {i + 1}: {error}") from None
    first, prompt, last, output, queued = np.array(rows).T
    meta = _beside(path, "meta.json")
    settings = {**meta, **meta.get("engine_kwargs", {}), **meta.get("kv_cache", {}), **settings_beside(path, root)}
    instance = _beside(path.parent, "config.json").get("nodes", [{}])[0].get("instances", [{}])[0]
    hardware = settings.get("gpu") or instance.get("hardware")
    stated = stated_server(path, settings, settings.get("model") or instance.get("model_name"))
    server = replace(
        stated,
        gpu=_sheet(path, hardware) or known_gpu(hardware) or hardware if hardware else stated.gpu,
        dtype=server_dtype(settings.get("dtype")),
        asynchronous=bool(settings.get("async_scheduling", True)),
        scheduler=settings.get("scheduler") or "vllm",
    )
    return RecordedRun(
        name=run_name(path, root),
        path=path,
        format="engine times",
        server=server,
        arrival_ns=np.rint((queued - queued.min()) * 1e9).astype(np.int64),
        prompt_len=prompt.astype(np.int64),
        output_len=output.astype(np.int64),
        ttft_ms=(first - queued) * 1e3,
        e2el_ms=(last - queued) * 1e3,
        at_engine=True,
    )


def _spans(path: Path, root: Path) -> RecordedRun:
    """Read a CSV file with each request's arrival, TTFT and E2E, next to a `<stem>.meta.json` that describes the
    server."""
    columns = csv_columns(path)
    arrival, prompt, output, ttft, e2e = (
        numbers(columns, name, path) for name in ("arrival_time_us", "input_tokens", "output_tokens", "ttft_s", "e2e_s")
    )
    failed = numbers(columns, "has_error", path) if "has_error" in columns else np.zeros(len(arrival))
    index = numbers(columns, "index", path) if "index" in columns else np.arange(len(arrival), dtype=np.float64)
    ok = (failed == 0) & np.isfinite(arrival + prompt + ttft + e2e)
    stem = path.name.removesuffix(".gz").removesuffix(".csv")
    meta = _beside(path, f"{stem}.meta.json")
    asked = _asked_output(meta.get("profile", {}))
    counted = np.maximum(output[ok], 1)  # even an empty answer took the time of one token
    config = {**meta.get("config", {}), **settings_beside(path, root)}
    sheet = next((_beside(path, p.name).get("name") for p in path.parent.glob("*.json") if known_gpu(p.stem)), None)
    server = Server(
        model=known_model(meta.get("model_id") or config.get("model")),
        gpu=known_gpu(str(config.get("gpu") or sheet or "")) or gpu_of(path, config),
        tp=int(config.get("tensor_parallelism", 1)),
        engine=f"vllm {config['vllm_version']}" if "vllm_version" in config else SPANS_ENGINE,
        num_blocks=config.get("kv_blocks_total_gpu"),
        block_size=int(config.get("block_size", 16)),
        max_num_seqs=config.get("max_num_seqs"),
        max_num_batched_tokens=config.get("max_num_batched_tokens"),
        max_model_len=_yaml_number(str(meta.get("exp_config", "")), "max_model_len", f"{path}: exp_config"),
    )
    return RecordedRun(
        name=run_name(path, root),
        path=path,
        format="spans",
        server=server,
        arrival_ns=np.rint(arrival[ok] * 1e3).astype(np.int64),
        prompt_len=prompt[ok].astype(np.int64),
        output_len=np.full(len(counted), asked) if asked else counted.astype(np.int64),
        ttft_ms=ttft[ok] * 1e3,
        e2el_ms=e2e[ok] * 1e3,
        prompt_id=(index[ok] % SPANS_PROMPTS).astype(np.int64),
        notes=(
            f"every answer is assumed to have the requested {asked} tokens, because the client counted tokens of text",
        )
        if asked
        else (),
    )


def _asked_output(profile: dict[str, Any]) -> int | None:
    """Return the number of tokens that the server was forced to generate, whatever the text, or None if not known. A
    client that counts tokens by re-encoding the text finds fewer (even none), although the server took the same time
    for every answer."""
    if not profile.get("server", {}).get("ignore_eos"):
        return None
    data = profile.get("data", {})
    lengths = data.get(data.get("type", ""), {}).get("output_len")
    return lengths if isinstance(lengths, int) and lengths > 0 else None


def _sheet(path: Path, hardware: str) -> str | None:
    """Return the path of the GPU's data sheet if there is one next to the log."""
    sheet = path.parent / hardware
    return str(sheet) if hardware.endswith((".yaml", ".yml")) and sheet.is_file() else None


def _beside(path: Path, name: str) -> dict[str, Any]:
    other = path.parent / name
    return read_json(other) if other.is_file() else {}


def _yaml_number(text: str, key: str, where: str) -> int | None:
    loaded = parse_yaml(text, where)
    value = loaded.get(key) if isinstance(loaded, dict) else None
    return value if type(value) is int else None
