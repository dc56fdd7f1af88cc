"""Sections of a scenario (the engine around the policies, the clients), and values as users write them: rates and
limits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, create_model

from servesim import untrusted
from servesim.contracts.section import Section
from servesim.errors import UserError
from servesim.metrics.slo import is_time, milliseconds, parse_slo, split_slo
from servesim.parsing import spelt, with_changes


class EngineSettings(Section):
    """The engine around the policies, with vLLM's names and defaults."""

    version: str | None = None
    """Version of the preset's engine (vllm, sglang or tensorrt-llm; vllm if no preset is set), such as 0.23.0. It
    determines kernels, host terms and the defaults below, as listed in servesim/versions. None means the newest known
    version."""
    async_scheduling: bool = True
    """Plan a step while the previous step runs, so that two steps are in flight. Schedulers without this feature
    plan synchronously, and the run prints a note."""
    max_model_len: int | Literal["auto"] = "auto"
    """Maximum length of prompt + output in tokens. `auto` is the model's own maximum, or less if the KV memory is
    smaller."""
    block_size: int = Field(default=16, ge=1, le=1 << 30)
    """Tokens per KV block."""
    gpu_memory_utilization: float = Field(default=0.92, gt=0, le=1)
    """Fraction of the GPU's memory that the engine may use."""
    num_gpu_blocks: int | None = Field(default=None, ge=2)
    """Number of KV blocks of a replica. None uses as many blocks as fit in memory."""
    disable_hybrid_kv_cache_manager: bool = False
    """Keep the full KV of layers with sliding windows, as engines without a hybrid KV cache manager do (and vLLM with
    some KV connectors). Otherwise, these layers free the tokens that have left their windows."""
    swap_space_gib: float = Field(default=4.0, ge=0, le=1e6)
    """Host memory per GPU for swapped-out KV (GiB). Only schedulers that swap use it. The default is the same as in
    vLLM V0."""
    moe_backend: Literal["auto", "triton", "marlin"] = "auto"
    """Kernel of mixture-of-experts layers with 4-bit weights. `auto` is the kernel that the engine is known to
    use (servesim/versions), or otherwise the fastest measured kernel."""
    attention_backend: Literal["auto", "eager"] = "auto"
    """Attention implementation. `eager` is not fused, so scores and probabilities are written to memory. Its time is
    computed by formula, and its memory use is not counted."""
    enforce_eager: bool = False
    """Launch every kernel by itself, without CUDA graphs: vLLM's flag of this name, SGLang's disable_cuda_graph,
    TensorRT-LLM without cuda_graph_config. The time of a launch is that of host terms pytorch-eager, set by one step of
    one model on one H100."""
    float32_matmul_precision: Literal["highest", "high"] = "highest"
    """Precision of float32 matrix products (vLLM's VLLM_FLOAT32_MATMUL_PRECISION). `high` is TF32 on tensor cores. It
    affects models whose routers the engine keeps in float32."""
    fuse_allreduce_rms: bool | None = None
    """Fuse all-reduce, residual and norm into one kernel (vLLM's pass_config.fuse_allreduce_rms). None means the
    default of the engine's version. It matters for TP on Hopper and Blackwell."""
    enable_expert_parallel: bool = False
    """Distribute whole experts over the tp x dp GPUs instead of splitting each one by width. `ep` sets the number of
    GPUs."""
    all2all_backend: Literal[
        "auto", "allgather_reducescatter", "deepep_low_latency", "deepep_high_throughput", "deepep_auto"
    ] = "auto"
    """Communication method for sending tokens to experts on other data-parallel ranks. `auto` is the default of the
    engine. `deepep_auto` uses the low-latency mode if all ranks decode, and the high-throughput mode otherwise."""
    expert_skew: float | None = Field(default=None, ge=0, le=3)
    """Exponent of the power law of expert loads. 0 means equal loads. The most loaded GPU determines the time. None
    means 1.2, as in the kernel measurements, or the exponent of the model's own router if it is known. For more than 8
    GPUs, only the power law applies."""
    enable_eplb: bool = False
    """Balance experts over GPUs by their loads (EPLB). Each redundant expert is a second copy of the most loaded
    expert."""
    num_redundant_experts: int = Field(default=0, ge=0, le=4096)
    """Number of additional expert copies under EPLB. These copies use GPU memory."""
    api_server_count: int = Field(default=1, ge=0, le=1024)
    """Number of API server processes of a replica (vLLM's --api-server-count). API servers tokenize prompts and
    stream answers. 0 means no API server, as when a program calls the engine directly (vLLM's LLM class)."""
    stream_interval: int = Field(default=1, ge=1, le=1 << 20)
    """Tokens per streamed chunk (vLLM's --stream-interval). Fewer chunks mean less work for the API servers."""
    max_queued_requests: int | None = Field(default=None, ge=0)
    """Maximum number of requests waiting on a replica. Further requests are rejected. None means no limit, as in
    vLLM."""
    ignore_memory: bool = False
    """Ignore memory limits. The KV memory has room for everything the trace can request, unless num_gpu_blocks is
    lower."""


class ClientSettings(Section):
    """Client behavior. By default, each request is sent at its arrival time, and clients wait as long as it takes."""

    tool: Literal["vllm-bench", "sglang-bench", "aiperf", "inferencex"] | None = None
    """Benchmark client whose sending behavior sets the defaults: rate (inf unless given), gaps, turnaround and number
    of requests. Its warm-up requests are not replayed."""
    max_concurrency: int | None = Field(default=None, ge=1)
    """Closed loop: maximum number of outstanding requests. Other requests wait outside the server. None means no
    limit."""
    turn_ms: float | None = Field(default=None, ge=0, le=1e7)
    """Mean delay between an answer and the next request in a closed loop, in ms. Delays are drawn from an exponential
    distribution. With None, there is no delay, so clients whose requests end together send their next requests at
    the same instant."""
    ramp_up_s: float = Field(default=0.0, ge=0, le=1e7)
    """Seconds over which the clients of a closed loop start, at equal intervals."""
    burstiness: float | None = Field(default=None, gt=0, le=1e4)
    """Draw arrival times at `rate`, with gaps from a gamma distribution of this shape, like vLLM's --burstiness. 1 is
    Poisson, and smaller values are burstier. None keeps the recorded gaps."""
    batch: bool = False
    """Send max_concurrency requests together, and send the next batch after all of them have ended. This gives the
    latency of a single batch."""
    max_sessions: int | None = Field(default=None, ge=1)
    """Maximum number of conversations in progress. The next conversation begins when one ends. None means no limit."""
    timeout_s: float | None = Field(default=None, gt=0, le=1e7)
    """Seconds after which a client gives up if it has not received its last token. None means never."""
    ttft_timeout_s: float | None = Field(default=None, gt=0, le=1e7)
    """Seconds after which a client gives up if it has not received its first token. None means never."""
    retries: int = Field(default=0, ge=0, le=100)
    """Number of times that a rejected or timed-out request is sent again."""
    retry_delay_s: float = Field(default=1.0, ge=0, le=1e7)
    """Seconds before a request is sent again."""


Rate = float | str
"""Requests/s, or a factor such as `3x`."""


def parse_rate(value: float | str) -> Rate:
    """Return a rate as a number, or a factor as text such as `3x`; raise ValueError for anything else."""
    text = str(value).strip().lower()
    try:
        number = float(text.removesuffix("x"))
    except ValueError:
        raise ValueError("must be requests/s, or a factor such as 3x") from None
    if not number > 0:
        raise ValueError("must be above 0")
    if not text.endswith("x"):
        return number
    if number == math.inf:
        raise ValueError("to send all requests at once, write inf without an x")
    return f"{number!r}x".replace(".0x", "x")


def factor_of(rate: Rate | None) -> float | None:
    """Return the factor if the rate is one, else None."""
    return float(rate[:-1]) if isinstance(rate, str) else None


def rate_words(rate: Rate) -> str:
    """Return a rate as text, such as "4.4 requests/s" and "3x the recorded rate"."""
    if isinstance(rate, str):
        return f"{rate} the recorded rate" if rate.endswith("x") else f"{rate} requests/s"
    return f"{rate:g} requests/s"


def with_percentiles(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings in which limits, both of all requests (`slo`) and of classes (`slo_classes`), are milliseconds by
    metric, and percentiles have separate keys. Values that are not limits are left for validation to refuse."""
    found = dict(settings)
    plain, percentiles = _taken_apart(found.get("slo"))
    found |= {"slo": plain} if "slo" in found else {}
    found |= {"slo_percentiles": percentiles} if percentiles else {}
    classes = found.get("slo_classes")
    if isinstance(classes, Mapping):
        apart = {name: _taken_apart(limits) for name, limits in classes.items()}
        found["slo_classes"] = {name: limits for name, (limits, _) in apart.items()}
        each = {name: percentiles for name, (_, percentiles) in apart.items() if percentiles}
        found |= {"slo_class_percentiles": each} if each else {}
    return found


def _taken_apart(limits: Any) -> tuple[Any, dict[str, float]]:
    limits = parse_slo(limits) if isinstance(limits, str) and limits else limits
    if not isinstance(limits, Mapping):
        return limits, {}
    plain, percentiles = split_slo(limits)
    numbers = {name: milliseconds(name, value) if is_time(value) else spelt(value) for name, value in plain.items()}
    return numbers, percentiles


def check_percentiles(limits: Mapping[str, float], percentiles: dict[str, float]) -> dict[str, float]:
    """Return percentiles of limits; raise ValueError for a percentile that has no limit or is invalid."""
    for name, percentile in percentiles.items():
        if name not in limits or not 0 < percentile <= 100:
            raise ValueError("must be percentiles of limits in slo, above 0 and up to 100")
    return percentiles


def yaml_value(what: str, text: str) -> Any:
    """Return the YAML value of a string; raise UserError, with a message that begins with `what`, if it is not valid
    YAML."""
    try:
        return untrusted.parse_yaml(text, what)
    except UserError as error:
        raise UserError(f"{what}: the value is not YAML") from error


def renamed(value: Any) -> Any:
    """Return a model or GPU given as a mapping with `name` and changed parts as one string; return anything else
    unchanged."""
    if isinstance(value, Mapping) and isinstance(value.get("name"), str):
        return with_changes(value["name"], {key: inner for key, inner in value.items() if key != "name"})
    return value


def extended(base: type[Section], parts: Sequence[tuple[str, type[Section]]]) -> type[Any]:
    """Return a class of the same name that adds the settings of these parts after its own, each under the section
    paired with it ("": at the top). Parts of one section share it, in their order."""
    top = [part for section, part in parts if not section and part.model_fields]
    inner: dict[str, list[type[Section]]] = {}
    for section, part in parts:
        if section and part.model_fields:
            inner.setdefault(section, []).append(part)
    fields: dict[str, Any] = {}
    for section, group in inner.items():
        name = f"{section.title().replace('_', '')}Settings"
        # With several base classes, pydantic takes the fields of the last one first.
        model = create_model(
            name, __base__=tuple(reversed(group)), __module__=base.__module__, __doc__=group[0].__doc__
        )
        fields[section] = (model, model())
    made: type[Any] = create_model(
        base.__name__.removeprefix("_"),
        __base__=(*reversed(top), base) if top else base,
        __module__=base.__module__,
        __doc__=base.__doc__,
        **fields,
    )
    return made
