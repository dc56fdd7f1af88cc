"""Hit rates of the prefix cache of a recorded server of coding agents (vLLM, DeepSeek-R1), from the sessions it served.

The recording names session and call of each request, so prompts are known block by block. Requests come at their
recorded times; memory is ample, as the server's was (8 and 65 % in use at most), so that the rate tells what is found
of prompts, not what is evicted. Requests cut off at the end are in the server's counters but not in its log.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import servesim
from servesim.workload.trace import Content, Trace

RECORDED = "groundtruth/kv_offload_dsr1_b200"
BLOCK = 64


def rows_of(path: Path) -> list[dict[str, str]]:
    csv.field_size_limit(1 << 30)  # a column holds the time of every token
    with gzip.open(path, "rt") as file:
        return list(csv.DictReader(file))


def recorded_trace(rows: list[dict[str, str]], sessions: dict[str, Any]) -> Trace:
    """The requests with their prompts: a run of 64 tokens a block, and what is left over, like nothing else."""
    number = {session: i for i, session in enumerate(sorted({row["trace_id"] for row in rows}))}
    ids, lengths, offsets = [], [], [0]
    for i, row in enumerate(rows):
        call, tokens = sessions[row["trace_id"]][int(row["request_idx"])], int(row["input_tokens"])
        assert call["in"] == tokens
        blocks = [b for first, count in call["h"] for b in range(first, first + count)][: tokens // BLOCK]
        ids += [(number[row["trace_id"]] + 1) << 32 | b for b in blocks]
        lengths += [BLOCK] * len(blocks)
        if left := tokens - BLOCK * len(blocks):
            ids.append(1 << 60 | i)
            lengths.append(left)
        offsets.append(len(ids))
    start = np.array([float(row["request_start_time"]) for row in rows])
    prompt, output = (np.array([int(row[c]) for row in rows]) for c in ("input_tokens", "output_tokens_actual"))
    content = Content(*(np.array(column, dtype=np.int64) for column in (offsets, ids, lengths)))
    arrival = np.rint((start - start[0]) * 1e9).astype(np.int64)
    return Trace.from_lengths("agents", arrival, prompt, np.maximum(output, 1), content=content)


@pytest.mark.slow
@pytest.mark.parametrize("users", [1, 12])
def test_as_much_of_prompts_is_found_as_on_the_server(users: int, shared_data: Callable[[str], Path]) -> None:
    folder = shared_data(f"{RECORDED}/tp4_users{users}_offloadoff")
    corpus = shared_data("traces/agentic/kv-cache-tester_710_compact_rle.jsonl.gz")
    rows = sorted(rows_of(folder / "detailed_results.csv.gz"), key=lambda row: float(row["request_start_time"]))
    with gzip.open(corpus, "rt") as file:
        sessions = {session["id"]: session["requests"] for session in map(json.loads, file)}
    counters = rows_of(folder / "metrics_server_metrics.csv.gz")[-1]
    measured = float(counters["prefix_cache_hits"]) / float(counters["prompt_tokens_total"])
    cache = servesim.simulate(
        trace=recorded_trace(rows, sessions),
        model="deepseek-v3",
        gpu="h200",
        tp=8,
        dtype="fp8",
        engine={"block_size": BLOCK, "num_gpu_blocks": 26_800, "ignore_memory": True},
        host="none",
        kernel_tables="roofline",
    ).summary["prefix_cache"]
    assert cache["hit_rate"] == pytest.approx(measured, abs=0.01)
