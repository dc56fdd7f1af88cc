"""Sessions of coding agents served with and without host memory, as one server was recorded: vLLM 0.19.1, DeepSeek-R1
in FP4 on 4 B200, FP8 KV; 1 to 256 users, each of whom goes on with one recorded session.

Only memory is the simulator's here: steps take times fitted to the server's runs without host memory. With which
session a user begins, and at which of its requests, is known from the server's logs; a request comes as long after the
answer as in the session, 60 s at most. Sessions that are not given (half of that corpus) are stood in for by those of
which a request has the nearest length.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from servesim import draws
from servesim.contracts import KVMemory, Limits, build_params, make
from servesim.contracts.cost import Batch, CostModel
from servesim.engine.cluster import Cluster
from servesim.engine.modes import MODES
from servesim.engine.pool import Pool
from servesim.features.offload.connector import Offload
from servesim.features.offload.lru import Lru
from servesim.features.offload.tiers import Direction
from servesim.policies.kv.prefix_hash import PrefixHash
from servesim.policies.routing.round_robin import RoundRobin
from servesim.policies.scheduling.vllm import Vllm
from servesim.records.recorder import Recorder
from servesim.workload.trace import COMPLETION, After, Content, Trace
from servesim.workload.workload import TraceWorkload

CORPUS_BLOCK = 64
BLOCK = 32
"""Tokens of a KV block: all counters of the server are multiples of it."""
GPU_TOKENS = 1_720_000
"""KV memory: the median of 45 requests that ran alone, tokens over the share of memory in use when they ended."""
BYTES_PER_TOKEN = 576 * 61
"""KV of a token on each GPU: latents of 576 values in 61 layers, FP8."""
BUDGET = 8192
MOST_THINK_S = 60
MOST_TOKENS = 131_072
SECOND = 10**9
HELD = ("kv_used_ns", "kv_internal_ns")


class Clock(CostModel):
    """Steps in whole ns, by what they compute."""

    def __init__(self, base_ms: float, ms_per_1k_context: float, prefill_per_s: float) -> None:
        self._base, self._context = round(base_ms * 1e6), ms_per_1k_context * 1e3
        self._token = 1e9 / prefill_per_s

    def gpu_run(self, batch: Batch, k: int) -> NDArray[np.int64]:
        contexts = batch.decode_context_sum + batch.decode_count * np.arange(k)
        prefill = sum(new for new, _ in batch.prefill)
        found: NDArray[np.int64] = self._base + np.rint(self._context * contexts + self._token * prefill).astype(
            np.int64
        )
        return found


class Row(NamedTuple):
    """A request to be sent."""

    prompt: int
    answer: int
    """Tokens."""
    runs: list[tuple[int, int]]
    wait: list[tuple[int, int, int, int]]


@dataclass(frozen=True)
class Sessions:
    """What users ask for."""

    folder: Path
    corpus: Path

    @cached_property
    def sessions(self) -> dict[str, list[dict[str, Any]]]:
        """Requests of each session."""
        with gzip.open(self.corpus, "rt") as file:
            found = {each["id"]: each for each in map(json.loads, file)}
        return {name: (each.get("requests") or found[each["dup_of"]]["requests"]) for name, each in found.items()}

    @cached_property
    def logged(self) -> list[dict[str, str]]:
        """All requests in logs."""
        csv.field_size_limit(1 << 30)  # a column holds the time of every token
        rows: list[dict[str, str]] = []
        for path in sorted(self.folder.glob("*/detailed_results.csv.gz")):
            with gzip.open(path, "rt") as file:
                rows += csv.DictReader(file)
        return rows

    @cached_property
    def begins(self) -> list[tuple[str, int, int]]:
        """(session, first request, its tokens) of each user, in order."""
        first: dict[str, tuple[str, int, int]] = {}
        for row in sorted(self.logged, key=lambda row: float(row["request_start_time"] or 0)):
            user = row["user_id"]
            if user[5:].isdecimal() and user not in first and int(row["input_tokens"]):
                first[user] = (row["trace_id"], int(row["request_idx"]), int(row["input_tokens"]))
        return [first[user] for user in sorted(first)]

    @cached_property
    def answers(self) -> list[int]:
        """Tokens of answers that came to an end."""
        return sorted(int(row["output_tokens_actual"]) for row in self.logged if int(row["output_tokens_actual"]) > 0)

    def requests(self, user: int, whole: bool) -> tuple[str, list[dict[str, Any]]]:
        """Return the session of a user and its requests from where the user begins, or from the first."""
        name, index, tokens = self.begins[user % len(self.begins)]
        if name not in self.sessions or len(self.sessions[name]) <= index:
            among = (
                (abs(each["in"] - tokens), other, i) for other, i, each in self._all if i + 10 < self._length[other]
            )
            _, name, index = min(among)
        return name, [each for each in self.sessions[name][0 if whole else index :] if "in" in each]

    @cached_property
    def _all(self) -> list[tuple[str, int, dict[str, Any]]]:
        return [
            (name, i, each)
            for name, requests in self.sessions.items()
            for i, each in enumerate(requests)
            if "in" in each
        ]

    @cached_property
    def _length(self) -> dict[str, int]:
        return {name: len(requests) for name, requests in self.sessions.items()}

    def trace(self, users: int, turns: int) -> Trace:
        """Return `turns` requests of each user. One whose session ends goes on with that of a user who is not there."""
        numbers = {name: i for i, name in enumerate(sorted(self.sessions))}
        rows: list[Row] = []
        others = iter(range(users, 1 << 30))
        for user in range(users):
            before, left = -1, turns
            each_user, whole = user, False
            while left:
                name, requests = self.requests(each_user, whole)
                # users who share a session (stand-ins) do not share what it says
                key = (each_user << 16 | numbers[name]) << 24
                for each in requests[:left]:
                    if each["in"] > MOST_TOKENS - BUDGET:
                        break
                    rows.append(self._row(each, key, before, len(rows)))
                    before, left = len(rows) - 1, left - 1
                else:
                    if not left:
                        break
                each_user, whole = next(others), True
        ids, lengths = ([run[i] for row in rows for run in row.runs] for i in (0, 1))
        offsets = np.cumsum([0] + [len(row.runs) for row in rows])
        prompts, answers = (np.array(column, dtype=np.int64) for column in zip(*[row[:2] for row in rows], strict=True))
        content = Content(offsets, np.array(ids, dtype=np.int64), np.array(lengths, dtype=np.int64))
        after = After.of([row.wait for row in rows])
        return Trace.from_lengths(
            "agents", np.zeros(len(rows), np.int64), prompts, answers, content=content, after=after
        )

    def _row(self, each: Mapping[str, Any], key: int, before: int, number: int) -> Row:
        """Return a request of a session whose content is numbered from `key`, after that of row `before` (-1: none)."""
        runs = list(_cut([(key | first, count * CORPUS_BLOCK) for first, count in each["h"]], each["in"]))
        if left := each["in"] - sum(length for _, length in runs):
            runs.append((1 << 60 | number, left))
        think = round(min(each.get("think_time") or 0, MOST_THINK_S) * SECOND)
        wait = [(before, COMPLETION, think, 0)] if before >= 0 else []
        answer = self.answers[int(draws.uniform_one(7, "answers", number) * len(self.answers))]
        return Row(each["in"], answer, runs, wait)


def _cut(runs: list[tuple[int, int]], tokens: int) -> Iterator[tuple[int, int]]:
    """Yield runs as far as whole blocks of a prompt go."""
    left = tokens // CORPUS_BLOCK * CORPUS_BLOCK
    for key, length in runs:
        if left > 0:
            yield key, min(length, left)
        left -= length


@dataclass(frozen=True)
class Shares:
    """Prompt tokens of requests that were admitted, by where their KV was found, and the memory in use."""

    gpu: float
    cpu: float
    kv: float
    requests: int
    per_s: float


def recorded(folder: Path) -> Shares:
    """Return what the server counted in a run."""
    with gzip.open(folder / "metrics_server_metrics.csv.gz", "rt") as file:
        rows = list(csv.DictReader(file))
    last = {key: float(value) for key, value in rows[-1].items()}
    busy = [row for row in rows if float(row["num_requests_running"]) > 0]
    span = float(busy[-1]["relative_time_sec"]) - float(busy[0]["relative_time_sec"])
    return Shares(
        last["prompt_tokens_local_cache_hit"] / last["prompt_tokens_total"],
        last["prompt_tokens_external_kv_transfer"] / last["prompt_tokens_total"],
        sum(float(row["kv_cache_usage_pct"]) for row in busy) / len(busy) / 100,
        int(last["request_success_total"]),
        last["request_success_total"] / span,
    )


def served(trace: Trace, clock: CostModel, seconds: float, cpu_tokens: int = 0, gb_s: float = 50.0) -> Shares:
    """Serve a trace for some seconds; `cpu_tokens`: host memory, 0: none."""
    memory = KVMemory(GPU_TOKENS // BLOCK, BLOCK, MOST_TOKENS)
    mode = "reference" if cpu_tokens else "fast"
    kv = make(MODES[mode].memory(PrefixHash), build_params("prefix-hash", PrefixHash.Params, {}), memory)
    scheduler = make(Vllm, build_params("vllm", Vllm.Params, {}), Limits(256, BUDGET, MOST_TOKENS, True), kv)
    core = MODES[mode].core(scheduler, kv, False)
    if cpu_tokens:
        link = (round(gb_s * 1e9), 0)
        core.connect(
            Offload(
                Lru(cpu_tokens // BLOCK),
                Direction(*link),
                Direction(*link),
                block_tokens=BLOCK,
                gpu_block_tokens=BLOCK,
                gpu_block_bytes=BLOCK * BYTES_PER_TOKEN,
                told_at_end=True,
            )
        )
    recorder = Recorder()
    router = make(RoundRobin, build_params("round-robin", RoundRobin.Params, {}), 1)
    cluster = Cluster(TraceWorkload(trace), [Pool([core], clock, 2)], router, mode=mode, recorder=recorder)
    cluster.start()
    while cluster.now_ns < seconds * SECOND and cluster.step():
        pass
    return _shares(recorder, core, seconds)


def _shares(recorder: Recorder, core: Any, seconds: float) -> Shares:
    column: Mapping[str, Any] = {name: recorder.requests.column(name) for name in ("row", "prompt_len", "hit_tokens")}
    prompts, hits = int(column["prompt_len"].sum()), int(column["hit_tokens"].sum())
    loaded = core.connector.counts.first_tokens if core.connector is not None else {}
    cpu = sum(loaded.get(row, 0) for row in column["row"].tolist())
    held, lasted = (sum(int(recorder.steps.column(name).sum()) for name in names) for names in (HELD, ("elapsed_ns",)))
    used = held / (GPU_TOKENS * lasted)
    done = len(column["row"])
    return Shares(hits / prompts, cpu / prompts, used, done, done / seconds)
