"""Sections of a scenario (the engine around the policies, the clients), and values as users write them: rates, prices,
limits.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from servesim import untrusted
from servesim.contracts.section import Section
from servesim.errors import UserError, shown
from servesim.metrics.slo import is_time, milliseconds, parse_slo, split_slo
from servesim.parsing import pairs, spelt, with_changes
from servesim.untrusted import read_text, read_yaml

if TYPE_CHECKING:
    from servesim.hardware import Gpu


class EngineSettings(Section):
    """The engine around the policies, under vLLM's names and with its defaults."""

    version: str | None = None
    """Version of the engine that the preset names (vllm, sglang or tensorrt-llm; vllm without a preset), such as
    0.23.0: it decides kernels, host terms and the defaults below, as servesim/versions says; none: the newest known."""
    async_scheduling: bool = True
    """Plan a step while the one before runs (two in flight); schedulers that cannot fall back, and it is noted."""
    max_model_len: int | Literal["auto"] = "auto"
    """Longest prompt + output in tokens; auto: what the model was made for, or less if the KV memory is smaller."""
    block_size: int = Field(default=16, ge=1, le=1 << 30)
    """Tokens per KV block."""
    gpu_memory_utilization: float = Field(default=0.92, gt=0, le=1)
    """Share of the GPU's memory the engine may use."""
    num_gpu_blocks: int | None = Field(default=None, ge=2)
    """KV blocks of a replica; none: all that fit."""
    disable_hybrid_kv_cache_manager: bool = False
    """Keep the whole KV of layers with sliding windows, as engines without such a manager do (and vLLM with some KV
    connectors); false: such layers give back what has slid out of their windows."""
    swap_space_gib: float = Field(default=4.0, ge=0, le=1e6)
    """Host memory per GPU for KV swapped out (GiB), for schedulers that swap; vLLM V0's default."""
    moe_backend: Literal["auto", "triton", "marlin"] = "auto"
    """Kernel of mixture-of-experts layers with 4-bit weights; auto: the one the engine is known to run
    (servesim/versions), else the fastest measured."""
    attention_backend: Literal["auto", "eager"] = "auto"
    """eager: no fused attention; scores and probabilities go through memory (by formula; the memory they take is not
    counted)."""
    enable_expert_parallel: bool = False
    """Deal experts out to the tp x dp GPUs whole instead of splitting each by width (`ep` says to how many)."""
    all2all_backend: Literal[
        "auto", "allgather_reducescatter", "deepep_low_latency", "deepep_high_throughput", "deepep_auto"
    ] = "auto"
    """How tokens get to the experts of other data-parallel ranks, and back; auto: the engine's default; deepep_auto:
    low latency where all ranks decode, else high throughput."""
    expert_skew: float | None = Field(default=None, ge=0, le=3)
    """Exponent of the power law that the loads of experts follow (0: all alike; the most loaded GPU sets the time);
    none: as kernels were measured, 1.2 (over more than 8 GPUs by this law alone)."""
    enable_eplb: bool = False
    """Balance experts over GPUs by their loads, each redundant one a second copy of the most loaded (EPLB)."""
    num_redundant_experts: int = Field(default=0, ge=0, le=4096)
    """Further copies of experts under EPLB; they take memory."""
    api_server_count: int = Field(default=1, ge=1, le=1024)
    """API server processes of a replica, which tokenize prompts and stream answers (vLLM's --api-server-count)."""
    stream_interval: int = Field(default=1, ge=1, le=1 << 20)
    """Tokens of a streamed chunk (vLLM's --stream-interval): fewer chunks are less work for the API servers."""
    max_queued_requests: int | None = Field(default=None, ge=0)
    """Requests that may wait on a replica; further ones are rejected. None: any number, as in vLLM."""
    ignore_memory: bool = False
    """Ignore memory limits: room for everything the trace can ask for, unless num_gpu_blocks says less."""


class ClientSettings(Section):
    """Client behavior. By default each request goes out at its time, and clients wait for as long as it takes."""

    tool: Literal["vllm-bench", "sglang-bench", "aiperf", "inferencex"] | None = None
    """A benchmark client, whose way of sending holds where the scenario says nothing: rate (inf unless given), gaps,
    turn-around, number of requests. Its warm-up requests are not replayed."""
    max_concurrency: int | None = Field(default=None, ge=1)
    """Closed loop: the most requests outstanding, the others queue outside; none: no limit."""
    turn_ms: float | None = Field(default=None, ge=0, le=1e7)
    """Mean time from an answer to the next request of a closed loop, each drawn from an exponential distribution; none:
    no time, so that requests which end together are followed at one instant."""
    ramp_up_s: float = Field(default=0.0, ge=0, le=1e7)
    """Seconds over which the clients of a closed loop begin, evenly one after the other."""
    burstiness: float | None = Field(default=None, gt=0, le=1e4)
    """Draw the times of arrivals at `rate`, with gaps of a gamma distribution of this shape (1: Poisson; below:
    bursts), as vLLM's --burstiness; none: as recorded."""
    batch: bool = False
    """Send max_concurrency requests at once and the next ones when all have left (latency of a single batch)."""
    max_sessions: int | None = Field(default=None, ge=1)
    """The most conversations in progress; the next begins when one ends. None: no limit."""
    timeout_s: float | None = Field(default=None, gt=0, le=1e7)
    """Seconds after which a client gives up if its last token has not come; none: never."""
    ttft_timeout_s: float | None = Field(default=None, gt=0, le=1e7)
    """Seconds after which a client gives up if its first token has not come; none: never."""
    retries: int = Field(default=0, ge=0, le=100)
    """Times a request that was rejected or timed out is sent again."""
    retry_delay_s: float = Field(default=1.0, ge=0, le=1e7)
    """Seconds before a request is sent again."""


Rate = float | str
"""Requests/s, or a factor such as `3x`."""


def parse_rate(value: float | str) -> Rate:
    """Return a rate as a number, or a factor as text such as `3x`; ValueError for anything else."""
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
        raise ValueError("for all at once write inf, without an x")
    return f"{number!r}x".replace(".0x", "x")


def factor_of(rate: Rate | None) -> float | None:
    """Return the factor where the rate is one."""
    return float(rate[:-1]) if isinstance(rate, str) else None


def rate_words(rate: Rate) -> str:
    """Return a rate in words, such as "4.4 requests/s" and "3x the recorded rate"."""
    if isinstance(rate, str):
        return f"{rate} the recorded rate" if rate.endswith("x") else f"{rate} requests/s"
    return f"{rate:g} requests/s"


MOST_USD = 1e6


def prices_of(given: Any) -> dict[str, float]:
    """Return $ per GPU hour by GPU. `given`: `h100=2.2,h200=3.1`, a mapping, or the path of a YAML file of such a
    mapping or of a CSV file whose rows are GPU and price; UserError for names of no GPU and prices that are none."""
    if isinstance(given, str):
        path = Path(given)
        if path.suffix in (".yaml", ".yml"):
            given = read_yaml(path, "prices")
        elif path.suffix == ".csv":
            given = _from_csv(path)
        else:
            given = pairs("price", given)
    if not isinstance(given, Mapping):
        raise UserError(f"price is {shown(given)}: write h100=2.2,h200=3.1, or name a YAML or CSV file of them")
    return {str(name): _usd(str(name), value) for name, value in given.items()}


def price_of(gpu: Gpu, prices: Mapping[str, float], usd_per_gpu_hour: float | None) -> float:
    """Return the price of a GPU hour: the one for all GPUs, else the one by name, else the data sheet's assumption."""
    return usd_per_gpu_hour if usd_per_gpu_hour is not None else prices.get(gpu.name, gpu.usd_per_hour)


def _usd(name: str, value: Any) -> float:
    try:
        usd = float(value)
    except (TypeError, ValueError, OverflowError):
        usd = -1.0
    if isinstance(value, bool) or not 0 <= usd <= MOST_USD:
        raise UserError(f"price of {name} is {shown(value)}, must be $ per GPU hour, from 0 to {MOST_USD:,.0f}")
    return usd


def _from_csv(path: Path) -> dict[str, str]:
    rows = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(read_text(path, "yaml"))) if row]
    wrong = next((row for row in rows if len(row) != 2), None)
    if wrong is not None or not rows:
        raise UserError(f"prices {path}: each row must be a GPU and its $ per hour, such as h100,2.2")
    head = not rows[0][1][:1].isdecimal()  # a header
    return dict(rows[head:])


def with_percentiles(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings in which limits, of all requests (`slo`) and of classes (`slo_classes`), are milliseconds by
    metric, and percentiles stand in keys of their own. What is no limits at all is left for the validation to refuse.
    """
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
    """Return percentiles of limits; ValueError where one has no limit, or is none."""
    for name, percentile in percentiles.items():
        if name not in limits or not 0 < percentile <= 100:
            raise ValueError("must be percentiles of limits in slo, above 0 and up to 100")
    return percentiles


def yaml_value(what: str, text: str) -> Any:
    """Return the value that YAML makes of a text; UserError, which `what` begins, where it makes none."""
    try:
        return untrusted.parse_yaml(text, what)
    except UserError as error:
        raise UserError(f"{what}: the value is not YAML") from error


def renamed(value: Any) -> Any:
    """Return a model or GPU that is a mapping with `name` and changed parts, as one text; anything else as it is."""
    if isinstance(value, Mapping) and isinstance(value.get("name"), str):
        return with_changes(value["name"], {key: inner for key, inner in value.items() if key != "name"})
    return value
