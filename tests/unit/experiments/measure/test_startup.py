"""Start-up logs and commands say what the server runs with."""

from __future__ import annotations

from pathlib import Path

import pytest

from servesim.errors import UserError
from servesim.experiments.measure.startup import read_flags, read_log, together

VLLM = """\
(APIServer pid=1) INFO 04-19 10:18:36 [utils.py:299]  version 0.19.2
(APIServer pid=1) INFO 04-19 [utils.py:233] non-default args: {'model_tag': 'org/Model-FP8', 'host': '0.0.0.0', \
'model': 'org/Model-FP8', 'max_model_len': 8192, 'gpu_memory_utilization': 0.8, 'kv_cache_dtype': 'fp8_e4m3', \
'enable_prefix_caching': False, 'max_num_batched_tokens': 8192, 'max_num_seqs': 32, 'served_model_name': ['m', 'n']}
(EngineCore pid=2) INFO 04-19 10:18:40 [core.py:93] Initializing a V1 LLM engine (v0.19.2) with config: \
model='org/Model-FP8', speculative_config=None, tokenizer='org/Model-FP8', dtype=torch.bfloat16, max_seq_len=8192, \
tensor_parallel_size=2, pipeline_parallel_size=1, quantization=fp8, kv_cache_dtype=fp8_e4m3, seed=0, \
enable_prefix_caching=False, enable_chunked_prefill=True, compilation_config={'compile_sizes': [], \
'cudagraph_mode': <CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>, 'cudagraph_capture_sizes': [1, 2, 4, 8, 16], \
'max_cudagraph_capture_size': 16}
(Worker_TP0 pid=42) INFO [fp8.py:419] Using MARLIN Fp8 MoE backend out of potential backends: ['AITER', 'TRITON'].
(EngineCore pid=2) INFO [cuda.py:368] Using FLASHINFER attention backend out of potential backends: ['FLASHINFER'].
(EngineCore pid=2) INFO [kv_cache_utils.py:1286] GPU KV cache size: 686,320 tokens
(EngineCore pid=2) INFO [kv_cache_utils.py:1291] Maximum concurrency for 8,192 tokens per request: 83.78x
"""
SGLANG = """\
[05:34:50] server_args=ServerArgs(model_path='org/Other', tokenizer_path='org/Other', tp_size=8, page_size=1, \
quantization='fp8', kv_cache_dtype='auto', attention_backend='fa3', moe_runner_backend='triton', \
chunked_prefill_size=4096)
[2026-02-26 05:35:09 TP0] KV Cache is allocated. #tokens: 473854, K size: 2.71 GB, V size: 2.71 GB
[2026-02-26 05:35:09 TP0] Capture cuda graph bs [1, 2, 4, 8, 12]
[2026-02-26 05:35:19 TP0] max_total_num_tokens=473854, chunked_prefill_size=8192, max_prefill_tokens=16384, \
max_running_requests=2048, context_len=131072, available_gpu_mem=8.27 GB
"""


def test_a_log_of_vllm_says_all_that_a_replay_needs(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(VLLM)
    assert read_log(tmp_path / "log") == {
        "engine": "vllm",
        "engine_version": "0.19.2",
        "model": "org/Model-FP8",
        "tensor_parallel_size": 2,
        "max_num_seqs": 32,
        "max_num_batched_tokens": 8192,
        "max_model_len": 8192,
        "kv_cache_tokens": 686320,
        "enable_prefix_caching": False,
        "moe_backend": "MARLIN",
        "attention_backend": "FLASHINFER",
        "cudagraph_capture_sizes": [1, 2, 4, 8, 16],
        "dtype": "bfloat16",
        "quantization": "fp8",
        "kv_cache_dtype": "fp8_e4m3",
    }


def test_a_log_of_sglang_too(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(SGLANG)
    assert read_log(tmp_path / "log") == {
        "engine": "sglang",
        "model": "org/Other",
        "tensor_parallel_size": 8,
        "max_num_seqs": 2048,
        "max_num_batched_tokens": 4096,
        "max_model_len": 131072,
        "kv_cache_tokens": 473854,
        "block_size": 1,
        "moe_backend": "triton",
        "attention_backend": "fa3",
        "cudagraph_capture_sizes": [1, 2, 4, 8, 12],
        "quantization": "fp8",
    }


def test_older_logs_count_blocks(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("INFO executor_base.py:110] # GPU blocks: 27,896, # CPU blocks: 2048\n")
    assert read_log(tmp_path / "log") == {"engine": "vllm", "num_gpu_blocks": 27896}


def test_a_file_that_is_no_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("nothing of the kind\n")
    with pytest.raises(UserError, match="not a startup log of vLLM or SGLang"):
        read_log(tmp_path / "log")
    (tmp_path / "log").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="UTF-8"):
        read_log(tmp_path / "log")


def test_of_a_log_without_end_the_start_alone_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = "non-default args: {'tensor_parallel_size': 2}\n"
    (tmp_path / "log").write_text(told + "." * 1000)
    monkeypatch.setattr("servesim.experiments.measure.startup.MOST_LOG", len(told))
    assert read_log(tmp_path / "log") == {"engine": "vllm", "tensor_parallel_size": 2}
    with (tmp_path / "log").open("w") as file:
        file.write("." * len(told) + "\n" + told)
    with pytest.raises(UserError, match="not a startup log of vLLM or SGLang"):
        read_log(tmp_path / "log")


def test_flags_say_what_they_set() -> None:
    command = "vllm serve org/Model -tp 2 --max-num-seqs=64 --quantization fp8 --no-enable-prefix-caching --port 80"
    assert read_flags(command) == {
        "engine": "vllm",
        "model": "org/Model",
        "tensor_parallel_size": 2,
        "max_num_seqs": 64,
        "quantization": "fp8",
        "enable_prefix_caching": False,
    }
    command = "python3 -m sglang.launch_server --model-path org/M --tp 4 --chunked-prefill-size 2048"
    assert read_flags(command) == {
        "engine": "sglang", "model": "org/M", "tensor_parallel_size": 4, "max_num_batched_tokens": 2048,
    }  # fmt: skip
    with pytest.raises(UserError, match="must be a number"):
        read_flags("vllm serve m --max-num-seqs many")
    with pytest.raises(UserError, match="--flags"):
        read_flags("vllm serve 'm")


def test_the_first_source_knows_best_and_blocks_follow_from_tokens() -> None:
    assert together({"a": 1}, {"a": 2, "b": 3}) == {"a": 1, "b": 3}
    assert together({"kv_cache_tokens": 686320})["num_gpu_blocks"] == 42895
    assert together({"kv_cache_tokens": 640, "block_size": 64})["num_gpu_blocks"] == 10
    assert together({"kv_cache_tokens": 640}, {"num_gpu_blocks": 9})["num_gpu_blocks"] == 9
