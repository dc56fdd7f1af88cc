"""vLLM (0.26) on the local GPU, in this process, with random weights.

The engine is stepped from here (`LLMEngine.step`) with synchronous scheduling, so a request that arrives during a step
waits for the rest of the step's wall time. The composition of a step is read from `Scheduler.schedule`. The model is a
folder with only its `config.json`; prompts are token ids.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from servesim.calibrate.engines import EngineLog, EngineStep, Piece, RequestLog, prompt_tokens, warmup_trace
from servesim.errors import UserError
from servesim.workload.trace import Trace

_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_USE_DEEP_GEMM": "0",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
"""Environment variables for a machine without network access or optional kernels; the engine runs in this
    process, so that it can be observed."""


@dataclass(frozen=True)
class VllmSettings:
    """Settings of the engine; None keeps the engine's default."""

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    num_blocks: int | None = None
    block_size: int | None = None
    more: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of vLLM's EngineArgs."""

    def arguments(self, model: Path) -> dict[str, Any]:
        """Return the arguments for EngineArgs."""
        own = {
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "num_gpu_blocks_override": self.num_blocks,
            "block_size": self.block_size,
        }
        return {
            "model": str(model),
            "load_format": "dummy",
            "skip_tokenizer_init": True,
            "dtype": "bfloat16",
            "attention_backend": "FLASH_ATTN",
            "compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"},
            "async_scheduling": False,
            "enable_prefix_caching": False,
            "disable_log_stats": True,
            **{key: value for key, value in own.items() if value is not None},
            **self.more,
        }


def run_vllm(config: dict[str, Any], name: str, trace: Trace, settings: VllmSettings, warmup: int) -> EngineLog:
    """Serve `trace` with the model of a Hugging Face config; `warmup` requests precede it."""
    for key, value in _ENVIRONMENT.items():
        os.environ.setdefault(key, value)
    try:
        import vllm
        from vllm import EngineArgs, LLMEngine, SamplingParams
    except ImportError as error:
        raise UserError(
            f"this needs vLLM 0.26 ({error}): pip install vllm==0.26.0 on a machine with a CUDA GPU, or copy it "
            "there as calibrate/README.md describes"
        ) from None
    with TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        try:
            arguments = EngineArgs(**settings.arguments(Path(folder)))
            engine = LLMEngine.from_engine_args(arguments)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UserError(f"vLLM does not start: {' '.join(str(error).split())[:500]}") from error
        driver = Driver(engine, SamplingParams, int(config["vocab_size"]))
        driver.serve(warmup_trace(trace, warmup))
        before = driver.steps
        requests = driver.serve(trace)
    cache, limits = engine.vllm_config.cache_config, engine.vllm_config.scheduler_config
    meta = {
        "engine": f"vllm {vllm.__version__}",
        "vllm_version": vllm.__version__,
        "model": name,
        "gpu": _gpu_name(),
        "dtype": settings.more.get("quantization") or "bfloat16",
        "kv_cache_dtype": str(cache.cache_dtype),
        "max_num_seqs": limits.max_num_seqs,
        "max_num_batched_tokens": limits.max_num_batched_tokens,
        "num_gpu_blocks": cache.num_gpu_blocks,
        "block_size": cache.block_size,
        "max_model_len": engine.vllm_config.model_config.max_model_len,
        "enable_prefix_caching": bool(cache.enable_prefix_caching),
        "async_scheduling": bool(limits.async_scheduling),
        "engine_args": dict(settings.more),
        "trace": trace.name,
    }
    return EngineLog(meta, requests, driver.steps, before)


def _gpu_name() -> str:
    from servesim.calibrate.timing import import_torch

    return str(import_torch().cuda.get_device_name(0))


class Driver:
    """Driver that sends requests at their arrival times and records the composition of each step."""

    def __init__(self, engine: Any, sampling_params: Any, vocab: int) -> None:
        self._engine, self._params, self._vocab = engine, sampling_params, vocab
        self._scheduler = engine.engine_core.engine_core.scheduler
        self._planned: list[tuple[str, Piece]] = []
        self.steps: list[EngineStep] = []
        self._runs = 0
        schedule = self._scheduler.schedule

        def watched(*args: Any, **more: Any) -> Any:
            output = schedule(*args, **more)
            self._planned = self._pieces(output)
            return output

        self._scheduler.schedule = watched

    def _pieces(self, output: Any) -> list[tuple[str, Piece]]:
        past = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        past |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        known = self._scheduler.requests
        return [
            (name, Piece(count, past[name], past[name] + count >= known[name].num_tokens))
            for name, count in output.num_scheduled_tokens.items()
        ]

    def serve(self, trace: Trace) -> list[RequestLog]:
        """Send every request at its arrival time and step the engine in between, until the last one is done."""
        self.steps = []
        self._runs += 1
        arrivals: list[int] = trace.arrival_ns.tolist()
        logs: list[RequestLog] = []
        prompts = [prompt_tokens(trace, row, self._vocab, self._runs) for row in range(len(trace))]
        by_name: dict[str, RequestLog] = {}
        began = time.perf_counter() - (arrivals[0] / 1e9 if arrivals else 0.0)
        while len(logs) < len(arrivals) or self._engine.has_unfinished_requests():
            now = time.perf_counter()
            while len(logs) < len(arrivals) and began + arrivals[len(logs)] / 1e9 <= now:
                row = len(logs)
                output = int(trace.output_len[row])
                # the engine was busy when the request arrived, so it has been waiting since then
                log = RequestLog(row, len(prompts[row]), output, queued=began + arrivals[row] / 1e9)
                params = self._params(max_tokens=output, ignore_eos=True, detokenize=False, temperature=0.0)
                inner = self._engine.add_request(f"{self._runs}-{row}", {"prompt_token_ids": prompts[row]}, params)
                by_name[inner] = by_name[f"{self._runs}-{row}"] = log
                logs.append(log)
            if self._engine.has_unfinished_requests():
                self._step(by_name)
            else:
                time.sleep(max(0.0, began + arrivals[len(logs)] / 1e9 - time.perf_counter()))
        return logs

    def _step(self, by_name: dict[str, RequestLog]) -> None:
        start, cpu = time.perf_counter(), time.thread_time()
        self._planned = []
        outputs = self._engine.step()
        end = time.perf_counter()
        if self._planned:
            step = EngineStep(start, end, tuple(p for _, p in self._planned), time.thread_time() - cpu)
            self.steps.append(step)
            for name, _ in self._planned:
                by_name[name].took_part(start)
        for output in outputs:
            by_name[output.request_id].delivered(len(output.outputs[0].token_ids), end)
