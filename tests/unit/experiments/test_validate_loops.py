"""Closed loops are told from open ones by what was recorded, and replayed as such."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from servesim.errors import UserError
from servesim.experiments.recording import RecordedRun, Server, due_ns, tell_loop
from servesim.experiments.recording_formats import read_folder
from servesim.experiments.recording_replay import _core, recorded_trace, replay
from servesim.experiments.validate import compare
from servesim.hardware import Gpu, ModelSpec

MS = 1_000_000


def recorded(sent_ms: list[float], e2el_ms: list[float]) -> RecordedRun:
    count = len(sent_ms)
    lengths, e2el = np.full(count, 50, dtype=np.int64), np.array(e2el_ms, dtype=np.float64)
    server = Server("llama-3.1-8b", "h100", num_blocks=4000)
    arrival = np.rint(np.array(sent_ms) * MS).astype(np.int64)
    return RecordedRun("run", Path("run"), "made", server, arrival, lengths, lengths, e2el / 2, e2el)


def closed(clients: int, turn_ms: float, count: int = 60) -> RecordedRun:
    """Clients that begin 3 ms apart, wait 100 to 108 ms for each answer and send again `turn_ms` later."""
    free, rows = [3.0 * i for i in range(clients)], []
    for i in range(count):
        at = min(free)
        rows.append((at, 100.0 + i % 9))
        free[free.index(at)] = at + 100.0 + i % 9 + turn_ms
    return recorded([at for at, _ in rows], [e2el for _, e2el in rows])


def test_requests_that_each_follow_an_answer_at_a_cap_are_a_closed_loop() -> None:
    told = tell_loop(closed(4, 0.1))
    assert told.concurrency == 4
    assert "a closed loop: 4 requests are in flight from request 4 on, and each is sent 0.1 ms" in told.notes[0]
    assert "--max-concurrency 4" in told.notes[0]


def test_clients_that_think_before_they_send_again_are_left_as_recorded() -> None:
    assert tell_loop(closed(4, 25.0)).concurrency is None


@pytest.mark.parametrize("gap_ms", [30.0, 150.0])
def test_arrivals_that_do_not_wait_are_open(gap_ms: float) -> None:
    """At equal gaps the number in flight is flat too, but nothing is sent because of an answer."""
    run = recorded([gap_ms * i for i in range(60)], [100.0 + i % 9 for i in range(60)])
    assert tell_loop(run) is run


def test_a_burst_whose_backlog_shrinks_is_open() -> None:
    run = recorded([0.0] * 30 + [1000.0 + 40 * i for i in range(60)], [500.0] * 30 + [30.0] * 60)
    assert tell_loop(run) is run


def test_a_closed_loop_sends_at_recorded_times_until_the_cap_and_then_waits_for_answers_alone() -> None:
    told = tell_loop(closed(4, 0.1))
    assert due_ns(told)[:6].tolist() == [0, 3 * MS, 6 * MS, 9 * MS, 9 * MS, 9 * MS]
    got = replay(told)
    ends = got.arrival_ns + np.rint(got.e2el_ms * 1e6).astype(np.int64)
    assert got.arrival_ns[:4].tolist() == [0, 3 * MS, 6 * MS, 9 * MS]
    in_flight = [int(((got.arrival_ns <= at) & (ends > at)).sum()) for at in got.arrival_ns]
    assert max(in_flight) == 4


def test_prompts_are_all_different_where_the_server_caches_prefixes_and_nothing_is_known_of_them() -> None:
    run = recorded([0.0, 1.0], [5.0, 5.0])
    content = recorded_trace(run).content
    assert content is not None
    assert content.ids.tolist() == [0, 1]
    assert recorded_trace(replace(run, server=replace(run.server, prefix_caching=False))).content is None


@pytest.mark.parametrize(("asynchronous", "in_flight"), [(False, 512), (True, 1024)])
def test_a_window_keeps_room_for_the_tokens_of_each_step_in_flight(asynchronous: bool, in_flight: int) -> None:
    model, gpu = ModelSpec.load("gemma-3-1b"), Gpu.load("h100")
    core = _core(Server(max_num_batched_tokens=512, asynchronous=asynchronous), model, gpu, None, None)
    assert core.kv.memory.in_flight_tokens == in_flight
    assert core.scheduler.limits.async_scheduling == asynchronous


def bench(folder: Path, hits: int, caching: str) -> RecordedRun:
    record = {
        "model_id": "meta-llama/Llama-3.1-8B", "completed": 3, "total_input_tokens": 30, "total_output_tokens": 12,
        "output_throughput": 1.0, "mean_ttft_ms": 5.0, "mean_tpot_ms": 10.0, "std_tpot_ms": 2.5, "mean_itl_ms": 20.0,
        "mean_e2el_ms": 35.0, "max_concurrency": 2, "input_lens": [10] * 3, "output_lens": [4] * 3,
    }  # fmt: skip
    folder = folder / "h100" / "eagle3_k2"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "r.json").write_text(json.dumps(record))
    for when, drafts, found in (("m0", 10, 100), ("m1", 110, 100 + hits)):
        lines = [
            f'vllm:cache_config_info{{block_size="16",enable_prefix_caching="{caching}",num_gpu_blocks="77"}} 1.0',
            f'vllm:spec_decode_num_drafts_total{{engine="0"}} {drafts}.0',
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="0"}} {drafts * 0.6}',
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="1"}} {drafts * 0.4}',
            f'vllm:prefix_cache_queries_total{{engine="0"}} {4 * found}.0',
            f'vllm:prefix_cache_hits_total{{engine="0"}} {found}.0',
        ]
        (folder / f"r.{when}.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    (run,) = read_folder(folder)
    return run


def test_requests_accept_as_unlike_as_their_tpot_is(tmp_path: Path) -> None:
    run = bench(tmp_path, 50, "True")
    assert run.server.speculation == "eagle3:k=2"
    assert run.server.acceptance.endswith(",spread=0.2500")
    # 9 tokens after the first in 3 requests of 30 ms with a gap of 20 ms: two a chunk, so rates sum to one.
    assert run.server.acceptance.startswith("positions:marginal=0.600000/0.400000")


def test_the_server_says_whether_it_caches_prefixes_and_what_it_found(tmp_path: Path) -> None:
    run = bench(tmp_path, 50, "True")
    assert (run.server.prefix_caching, run.hit_rate) == (True, 0.25)
    assert not bench(tmp_path, 50, "False").server.prefix_caching


def test_the_error_of_the_hit_rate_is_said_beside_the_latencies(tmp_path: Path) -> None:
    got = compare(replace(bench(tmp_path, 50, "True"), prompt_id=np.array([1, 2, 3])))
    assert got.hit_rate == 0.0
    assert "prefix cache: 25.0% of prompt tokens found, 0.0% in the simulation (-25.0 points)" in got.notes
    assert got.to_dict()["prefix_hit_rate"] == {"measured": 0.25, "simulated": 0.0}


def test_kv_blocks_of_an_engines_log_are_read_from_its_kv_cache(tmp_path: Path) -> None:
    row = {"input_toks": 10, "output_toks": 4, "queued_ts": 0.0, "first_token_ts": 0.1, "last_token_ts": 0.2}
    (tmp_path / "log.jsonl").write_text(json.dumps(row) + "\n")
    meta = {"model": "meta-llama/Llama-3.1-8B", "kv_cache": {"num_gpu_blocks": 2588, "block_size": 32}}
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    (run,) = read_folder(tmp_path)
    assert (run.server.num_blocks, run.server.block_size) == (2588, 32)


def test_a_version_in_a_models_name_does_not_hide_it() -> None:
    from servesim.experiments.recording import known_model

    assert known_model("mistralai/Mixtral-8x7B-v0.1") == "mixtral-8x7b"
    assert known_model("unheard/of-v2") == "unheard/of-v2"


def test_clients_that_a_column_states_are_taken_at_their_word(tmp_path: Path) -> None:
    head = "send_time_us,first_chunk_time_us,last_chunk_time_us,server_input_tokens,output_tokens,max_concurrency\n"
    (tmp_path / "run.csv").write_text(head + "0,1,2,3,4,7\n5,6,7,8,9,7\n")
    assert read_folder(tmp_path)[0].concurrency == 7
    for wrong in ("0,1,2,3,4,7\n5,6,7,8,9,8\n", "0,1,2,3,4,0\n", "0,1,2,3,4,\n"):
        (tmp_path / "run.csv").write_text(head + wrong)
        with pytest.raises(UserError, match="max_concurrency must be one number"):
            read_folder(tmp_path)


@pytest.mark.parametrize(("turn_ms", "concurrency"), [(0.0, 1), (10.0, 1), (10.1, None)])
def test_a_client_of_a_loop_sends_again_within_10_ms_of_an_answer_even_at_once(
    turn_ms: float, concurrency: int | None
) -> None:
    assert tell_loop(closed(1, turn_ms)).concurrency == concurrency
