"""Recorded coding agents in closed loop: what a cache finds, and how sessions answer to the server's speed."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from servesim.run.result import Result
from servesim.run.simulate import simulate
from servesim.traces import load_trace, shape
from servesim.traces.prefix import block_hits
from servesim.workload.trace import COMPLETION, Trace

AGENTS = Path(__file__).parents[3] / "shared" / "traces" / "agentic" / "kv-cache-tester_710_compact_rle.jsonl.gz"
pytestmark = pytest.mark.skipif(not AGENTS.exists(), reason="the recorded agents (../shared) are not here")
BLOCK = 64


@pytest.fixture(scope="module")
def sessions() -> Trace:
    """Eighteen sessions, those with sub-agents among them."""
    trace = load_trace(AGENTS)
    play = trace.plays()
    short = np.flatnonzero(np.bincount(play) <= 40)
    spawning = np.unique(play[[row for row, name in enumerate(trace.labels["session"]) if "::" in name]])
    wanted = [*[p for p in spawning.tolist() if p in set(short.tolist())][:4], *short[:14].tolist()]
    return shape(trace.take(np.flatnonzero(np.isin(play, wanted))), ["think:cap=60"])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model whose context holds every recorded prompt."""
    config = json.loads((files("servesim.hardware") / "models" / "llama-3.1-8b.json").read_text())
    path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_text(json.dumps({**config, "max_position_embeddings": 1 << 20}))
    return str(path)


def run(trace: Trace, model: str, **settings: Any) -> Result:
    engine = {"ignore_memory": True, "block_size": BLOCK, "num_gpu_blocks": 400_000}
    return simulate(trace=trace, model=model, gpu="h200", engine=engine, clients={"max_sessions": 6}, **settings)


@pytest.mark.slow
def test_an_endless_cache_finds_what_the_hashes_say(sessions: Trace, model: str) -> None:
    result = run(sessions, model)
    assert result.summary["requests"]["completed"] == len(sessions)
    assert sessions.content is not None
    known = block_hits(sessions.content, sessions.prompt_len, BLOCK)[2].sum() / sessions.prompt_len.sum()
    assert result.summary["prefix_cache"]["hit_rate"] == pytest.approx(known, abs=0.005)


@pytest.mark.slow
def test_slower_servers_are_asked_later_and_sessions_stay_in_order(sessions: Trace, model: str) -> None:
    fast, slow = (run(sessions, model, kernel_tables=tables) for tables in (None, "roofline"))
    ends = [result.requests.set_index("row")["last_token_ns"] for result in (fast, slow)]
    sent = [result.requests.set_index("row")["arrival_ns"] for result in (fast, slow)]
    assert (sent[0] != sent[1]).mean() > 0.9
    assert fast.summary["latency_ms"]["e2el"]["mean"] != slow.summary["latency_ms"]["e2el"]["mean"]
    assert sessions.after is not None
    for result_sent, result_end in zip(sent, ends, strict=True):
        for row in range(len(sessions)):
            for source, trigger, delay, _ in sessions.after.edges(row):
                assert trigger == COMPLETION
                assert result_sent[row] >= result_end[source] + delay
