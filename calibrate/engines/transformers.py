"""Hugging Face transformers' continuous batching (5.17), on a CPU or a GPU, with random weights.

The engine runs synchronously with `paged|sdpa` attention, greedy sampling and no block sharing, as in the scheduler
policy `transformers`, which replays this engine. The body of the engine's own loop runs here instead of in its thread.
Steps are observed by wrapping the batch processor's `prepare_next_batch` and `update_batch`; a token counts from the
end of the step that computed it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from servesim.calibrate.engines import EngineLog, EngineStep, Piece, RequestLog, prompt_tokens, warmup_trace
from servesim.calibrate.timing import import_torch, open_device
from servesim.errors import UserError
from servesim.workload.trace import Trace


@dataclass(frozen=True)
class TransformersSettings:
    """Settings of the engine."""

    max_num_seqs: int = 64
    max_num_batched_tokens: int = 256
    num_blocks: int = 128
    block_size: int = 256
    scheduler_type: str = "fifo"
    threads: int = 1
    clock: str = "wall"
    """Clock for arrivals and step times: "wall", or "cpu" for the processor time of the single thread, which shows the
    timing of an undisturbed machine even on a shared one."""


def run_transformers(
    config: dict[str, Any], name: str, trace: Trace, settings: TransformersSettings, device: str, warmup: int
) -> EngineLog:
    """Serve `trace` with the model of a Hugging Face config; `warmup` requests precede it."""
    torch = import_torch()
    on = open_device(device, settings.threads)
    driver = _Driver(torch, config, settings, device)
    try:
        driver.serve(warmup_trace(trace, warmup))
        before = driver.steps
        requests = driver.serve(trace)
    finally:
        driver.close()
    version = driver.version
    meta = {
        **({"gpu": on.name} if on.kind == "cuda" else {}),
        "engine": f"transformers {version}",
        "model": name,
        "dtype": {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}[driver.dtype],
        "kv_cache_dtype": {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}[driver.dtype],
        "max_num_seqs": settings.max_num_seqs,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "num_gpu_blocks": settings.num_blocks + 1,  # as in vLLM, where one block is never used
        "block_size": settings.block_size,
        "max_model_len": config["max_position_embeddings"],
        "enable_prefix_caching": False,
        "async_scheduling": False,
        "scheduler": f"transformers:scheduler_type={settings.scheduler_type}",
        "torch": torch.__version__,
        "threads": settings.threads,
        "clock": settings.clock,
        "trace": trace.name,
    }
    return EngineLog(meta, requests, driver.steps, before)


class _Driver:
    def __init__(self, torch: Any, config: dict[str, Any], settings: TransformersSettings, device: str) -> None:
        try:
            import transformers
            from transformers import AutoConfig, AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig
        except ImportError as error:
            raise UserError(f"this needs transformers ({error}): pip install 'servesim[calibrate]'") from None
        self.version = transformers.__version__
        self._torch = torch
        torch.manual_seed(0)
        kind = str(config.get("torch_dtype") or config.get("dtype") or "float32").removeprefix("torch.")
        self.dtype = kind
        own = {k: v for k, v in config.items() if k not in ("model_type", "torch_dtype", "dtype", "architectures")}
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(config["model_type"], **own),
            dtype=getattr(torch, kind),
            attn_implementation="paged|sdpa",
        )
        self._vocab = int(config["vocab_size"])
        batching = ContinuousBatchingConfig(
            block_size=settings.block_size,
            num_blocks=settings.num_blocks,
            max_batch_tokens=settings.max_num_batched_tokens,
            max_requests_per_batch=settings.max_num_seqs,
            allow_block_sharing=False,
            use_async_batching=False,
            use_cuda_graph=False,
            scheduler_type=settings.scheduler_type,
            seed=0,
        )
        self._manager = model.to(device).init_continuous_batching(
            generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0),
            continuous_batching_config=batching,
        )
        try:
            self._manager.warmup()  # the batch processor
        except MemoryError as error:
            raise UserError(f"{settings.num_blocks} KV blocks do not fit into memory: {error}") from None
        self.steps: list[EngineStep] = []
        self._requests: dict[str, RequestLog] = {}
        self._runs = 0
        self._processor = self._manager.batch_processor
        self._manager.current_batch = 0  # as the engine's thread does
        self._clock = time.thread_time if settings.clock == "cpu" else time.perf_counter
        self._skipped = 0.0  # idle time to add to a processor-time clock
        self._watch()

    def _now(self) -> float:
        return self._clock() + self._skipped

    def _watch(self) -> None:
        processor = self._processor
        prepare, update = processor.prepare_next_batch, processor.update_batch
        began = {"at": 0.0, "cpu": 0.0}

        def prepare_next_batch() -> bool:
            began.update(at=self._now(), cpu=time.thread_time())
            return bool(prepare())

        def update_batch() -> None:
            members = [
                (f.state.request_id, Piece(f.query_length, f.state.position_offset - f.query_length, f.has_new_token))
                for f in processor.inputs_and_outputs.requests_in_batch
            ]
            update()
            pieces = tuple(p for _, p in members)
            step = EngineStep(began["at"], self._now(), pieces, time.thread_time() - began["cpu"])
            self.steps.append(step)
            for name, piece in members:
                log = self._requests[name]
                log.took_part(step.start)
                if piece.sampled:
                    log.delivered(log.tokens + 1, step.end)

        processor.prepare_next_batch, processor.update_batch = prepare_next_batch, update_batch

    def serve(self, trace: Trace) -> list[RequestLog]:
        """Send every request at its arrival time and run the body of the engine's loop in between, until the last one
        is done."""
        self.steps = []
        self._runs += 1
        prompts = [prompt_tokens(trace, row, self._vocab, self._runs) for row in range(len(trace))]
        arrivals = [at / 1e9 for at in (trace.arrival_ns - trace.arrival_ns[:1].sum()).tolist()]
        logs: list[RequestLog] = []
        began = self._now()
        try:
            while len(logs) < len(arrivals) or self._pending():
                while len(logs) < len(arrivals) and began + arrivals[len(logs)] <= self._now():
                    row = len(logs)
                    output = int(trace.output_len[row])
                    name = f"{self._runs}-{row}"
                    log = RequestLog(row, len(prompts[row]), output, queued=began + arrivals[row])
                    self._requests[name] = log
                    logs.append(log)
                    self._manager.add_request(prompts[row], request_id=name, max_new_tokens=output, eos_token_id=-1)
                if self._pending():
                    self._manager._generation_loop_body(self._processor, bootstrapping=False)
                else:
                    self._wait(began + arrivals[len(logs)] - self._now())
        except RuntimeError as error:
            raise UserError(f"the engine stopped: {' '.join(str(error).split())[:300]}") from error
        return logs

    def _pending(self) -> bool:
        return not self._manager.input_queue.empty() or bool(self._processor.has_pending_requests())

    def _wait(self, seconds: float) -> None:
        if self._clock is time.thread_time:
            self._skipped += max(seconds, 0.0)
        elif seconds > 0:
            time.sleep(seconds)

    def close(self) -> None:
        self._manager.destroy()
