"""Lengths a recorded run does not state outright: from the prompts of a run beside it, or from what was asked for."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from servesim.experiments.recording_formats import read_folder

PROMPTS, ANSWERS = [100, 300, 200, 400], [10, 30, 20, 40]


def bench(folder: Path, name: str, count: int, output: int, **more: Any) -> Path:
    record = {
        "model_id": "openai/gpt-oss-120b",
        "request_rate": "inf",
        "max_concurrency": 2,
        "completed": count,
        "total_input_tokens": sum(PROMPTS[:count]),
        "total_output_tokens": output,
        "output_throughput": 1.0,
        "mean_ttft_ms": 5.0,
    }
    file = folder / f"{name}.json"
    file.write_text(json.dumps(record | more))
    return file


def test_a_shorter_run_sent_the_first_prompts_of_a_longer_one_of_the_same_sum(tmp_path: Path) -> None:
    bench(tmp_path, "long", 4, 100, input_lens=PROMPTS, output_lens=ANSWERS)
    bench(tmp_path, "short", 3, 120)
    _, short = read_folder(tmp_path)
    assert short.prompt_len.tolist() == PROMPTS[:3]
    assert short.output_len.tolist() == [20, 60, 40]  # twice as long, as the total says
    assert "prompt lengths are taken from long" in short.notes[0]


def test_without_such_a_run_all_requests_take_the_mean(tmp_path: Path) -> None:
    bench(tmp_path, "long", 4, 100, input_lens=[101, 299, 201, 399], output_lens=ANSWERS)
    bench(tmp_path, "short", 3, 120)
    _, short = read_folder(tmp_path)
    assert (short.prompt_len.tolist(), short.output_len.tolist()) == ([200] * 3, [40] * 3)


def test_kv_blocks_are_those_the_server_states_among_its_counters(tmp_path: Path) -> None:
    file = bench(tmp_path, "run", 4, 100)
    line = 'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="93295",num_cpu_blocks="None"} 1.0\n'
    file.with_name("run.m1.gz").write_bytes(gzip.compress(("# HELP x\n" + line).encode()))
    (run,) = read_folder(tmp_path)
    assert (run.server.num_blocks, run.server.block_size, run.unpriced) == (93295, 16, "")


def test_an_answer_that_ignores_its_end_has_the_tokens_asked_for_whatever_the_client_counted(tmp_path: Path) -> None:
    rows = "index,arrival_time_us,input_tokens,output_tokens,ttft_s,e2e_s\n0,0,50,3,0.1,1.1\n1,9,50,11,0.1,1.1\n"
    (tmp_path / "run.csv").write_text(rows)
    profile = {"server": {"ignore_eos": True}, "data": {"type": "made", "made": {"output_len": 11}}}
    for kept, wanted in (({}, [3, 11]), ({"profile": profile}, [11, 11])):
        (tmp_path / "run.meta.json").write_text(json.dumps(kept))
        (run,) = read_folder(tmp_path)
        assert run.output_len.tolist() == wanted
    assert run.tpot_ms.tolist() == [100.0, 100.0]
