"""Hugging Face transformers' continuous batching (5.17), on a processor or a GPU, with random weights.

Synchronous, `paged|sdpa` attention, greedy, no block sharing: what the scheduler policy `transformers` replays. Steps
are seen by wrapping the batch processor's `prepare_next_batch` and `update_batch`; a token counts from the end of the
step that computed it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from servesim.calibrate.engines import EngineLog, EngineStep, Piece, RequestLog, prompt_tokens, warmup_trace
from servesim.calibrate.timing import import_torch, open_device
from servesim.errors import UserError
from servesim.trace import Trace


@dataclass(frozen=True)
class TransformersSettings:
    """The engine's own knobs."""

    max_num_seqs: int = 64
    max_num_batched_tokens: int = 256
    num_blocks: int = 128
    block_size: int = 256
    scheduler_type: str = "fifo"
    threads: int = 1


def run_transformers(
    config: dict[str, Any], name: str, trace: Trace, settings: TransformersSettings, device: str, warmup: int
) -> EngineLog:
    """Serve `trace` by the model of a Hugging Face config; `warmup` requests go before it."""
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
        "num_gpu_blocks": settings.num_blocks + 1,  # as vLLM counts them: one is never used
        "block_size": settings.block_size,
        "max_model_len": config["max_position_embeddings"],
        "enable_prefix_caching": False,
        "async_scheduling": False,
        "scheduler": f"transformers:scheduler_type={settings.scheduler_type}",
        "torch": torch.__version__,
        "threads": settings.threads,
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
            self._manager.warmup()  # makes the batch processor, which the loop's thread then takes as it is
        except MemoryError as error:
            raise UserError(f"{settings.num_blocks} KV blocks do not fit into memory: {error}") from None
        self.steps: list[EngineStep] = []
        self._requests: dict[str, RequestLog] = {}
        self._runs = 0
        self._watch(self._manager.batch_processor)
        self._manager.start()

    def _watch(self, processor: Any) -> None:
        prepare, update = processor.prepare_next_batch, processor.update_batch
        began = {"at": 0.0, "cpu": 0.0}

        def prepare_next_batch() -> bool:
            at, cpu = time.perf_counter(), time.thread_time()
            ready = bool(prepare())
            if ready:
                began.update(at=at, cpu=cpu)
            return ready

        def update_batch() -> None:
            members = [
                (f.state.request_id, Piece(f.query_length, f.state.position_offset - f.query_length, f.has_new_token))
                for f in processor.inputs_and_outputs.requests_in_batch
            ]
            update()
            step = EngineStep(
                began["at"], time.perf_counter(), tuple(p for _, p in members), time.thread_time() - began["cpu"]
            )
            self.steps.append(step)
            for name, piece in members:
                log = self._requests[name]
                log.took_part(step.start)
                if piece.sampled:
                    log.delivered(log.tokens + 1, step.end)

        processor.prepare_next_batch, processor.update_batch = prepare_next_batch, update_batch

    def serve(self, trace: Trace) -> list[RequestLog]:
        """Send every request at its time and wait for the last one."""
        self.steps = []
        self._runs += 1
        prompts = [prompt_tokens(trace, row, self._vocab, self._runs) for row in range(len(trace))]
        logs = []
        began = time.perf_counter() - int(trace.arrival_ns[0]) / 1e9 if len(trace) else 0.0
        for row, (at, prompt, output) in enumerate(
            zip(trace.arrival_ns.tolist(), trace.prompt_len.tolist(), trace.output_len.tolist(), strict=True)
        ):
            wait = began + at / 1e9 - time.perf_counter()
            if wait > 0:
                time.sleep(wait)
            name = f"{self._runs}-{row}"
            log = self._requests[name] = RequestLog(row, prompt, output, queued=time.perf_counter())
            logs.append(log)
            self._manager.add_request(prompts[row], request_id=name, max_new_tokens=output, eos_token_id=-1)
        left = len(logs)
        while left:
            done = self._manager.get_result(timeout=1.0)
            if done is None and not self._manager.is_running():
                fault = self._manager.background_thread_status.fatal_error
                raise UserError(f"the engine stopped: {fault or 'its thread ended'}")
            if done is not None and done.is_finished():
                if done.error is not None:
                    raise UserError(f"the engine failed request {done.request_id}: {done.error}")
                left -= 1
        return logs

    def close(self) -> None:
        self._manager.stop(block=True, timeout=10.0, hard_stop=True)
