"""Notes on settings without effect in this run, and assumptions the reader must know: reported, never silently ignored.

A setting is reported when it differs from its default but cannot have had an effect. The notes depend only on the
resolved scenario and the run, so that a rerun of the resolved scenario has the same notes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from servesim.contracts import KVAllocator, Scheduler
from servesim.contracts.scheduler import PREDICTED
from servesim.contracts.warn import Warn
from servesim.cost import TableCostModel
from servesim.cost.host import HostTerms
from servesim.hardware import Gpu, ModelSpec, VllmDefaults, model_named
from servesim.run.presets import engine_presets, preset_settings
from servesim.run.prices import reserved_of
from servesim.run.scenario import Scenario
from servesim.versions import EngineFacts, engine_facts
from servesim.workload.front_end import FrontTerms
from servesim.workload.trace_stream import TraceFacts


def before_run(
    scenario: Scenario, trace: TraceFacts, scheduler: Scheduler, kv: KVAllocator, fitting_blocks: int | None
) -> Iterator[str]:
    """Yield notes that follow from the scenario and the trace. `fitting_blocks`: KV blocks that would fit in the GPU's
    memory."""
    if len(trace.models) > 1 and not scenario.pools:
        each = ", ".join(f"{count:,} for {name}" for name, count in trace.models.items())
        yield Warn(
            f"the trace requests {len(trace.models)} models ({each}), but {scenario.model} serves all of them: "
            "define a pool for each model, or keep only one model's requests (--shape "
            f"where:model={next(iter(trace.models))})"
        )
    yield from _name(scenario)
    yield from _oracles(scheduler, kv)
    if scenario.engine.async_scheduling and "async" not in scheduler.supports:
        yield f"async_scheduling: scheduler {scheduler.name} plans synchronously, so no step is planned ahead"
    if scenario.engine.async_scheduling and scenario.pp > 1:
        yield "async_scheduling: pipeline stages are planned synchronously, one batch per stage in flight"
    yield from _trace_settings(scenario, trace)
    yield from _predictor(scenario, trace, scheduler)
    yield from _clients(scenario, trace)
    if scenario.price and (given := unpriced(scenario)) is not None:
        yield given
    if (
        scenario.replicas * scenario.dp == 1
        and scenario.router["name"] != Scenario.model_fields["router"].default["name"]
    ):
        yield Warn(f"router {scenario.router['name']} has no effect with one replica. Add --replicas.")
    if scenario.scheduler.get("policy") == "priority" and trace.one_priority:
        yield Warn(
            "scheduler policy=priority has little effect: all requests have the same priority, so request ids only "
            "break ties in arrival time. Add priorities to the trace."
        )
    threshold = scenario.scheduler.get("long_prefill_token_threshold", 0)
    if isinstance(threshold, int) and threshold >= trace.longest_prompt:
        yield f"scheduler long_prefill_token_threshold={threshold} is never reached: no prompt is longer"
    drafts = scenario.speculation["name"] != "none"
    for key in () if drafts else ("num_speculative_tokens", "draft_slots_per_request", "num_lookahead_tokens"):
        if scenario.scheduler.get(key):
            yield Warn(
                f"scheduler {key}={scenario.scheduler[key]}: no speculation is configured, so this setting only "
                "reserves slots. Add --speculation or remove this setting."
            )
    for name in scenario.slo_classes:
        if name not in trace.classes:
            yield Warn(
                f"slo_classes.{name} has no effect: no request in the trace has this class. Check the name of the "
                "class."
            )
    if "tpot" in scenario.slo and trace.longest_output == 1:
        yield Warn("slo tpot has no effect: every request has one output token. Check the output lengths in the trace.")
    swap_space = type(scenario.engine).model_fields["swap_space_gib"].default
    if scenario.engine.swap_space_gib != swap_space and "swap" not in scheduler.supports:
        yield Warn(f"swap_space_gib has no effect: scheduler {scheduler.name} does not swap. Remove this setting.")
    yield from _memory_settings(scenario, fitting_blocks)
    if kv.shares and not trace.has_content and not trace.samples:
        usual = preset_settings(scenario.preset or "vllm")["kv"]["name"] == scenario.kv["name"]
        yield (str if usual else Warn)(  # asked for, it contradicts the trace; as the default it is an assumption
            f"kv {kv.name}: the trace does not record the content of prompts, so prefix caching has no effect. If "
            "your prompts share prefixes, add them with --shape share:tokens=N,groups=N."
        )


def _name(scenario: Scenario) -> Iterator[str]:
    """Yield a note on how the model's name was interpreted, if it is not a bundled name."""
    found = model_named(scenario.model)
    if found is None or found.model == scenario.model.lower():
        return
    said = f"model {scenario.model}: uses the shapes of {found.model}, with weights in {scenario.dtype}"
    if found.dtype in (None, scenario.dtype):
        yield said
    else:
        yield Warn(f"{said}, although the name indicates {found.dtype}: set --dtype {found.dtype} if the name is right")


def unpriced(scenario: Scenario) -> Warn | None:
    """Return a warning if prices by GPU are given but do not apply to the scenario's GPU."""
    gpu, names, usd = Gpu.load(scenario.gpu).name, ", ".join(scenario.price), scenario.usd_per_gpu_hour
    if gpu not in scenario.price:
        return Warn(
            f"no price is specified for {gpu} (only for {names}), so its data-sheet price of ${usd or 0:g} per "
            "GPU-hour "
            "is used. Add the price to --price."
        )
    if usd == scenario.price[gpu] or reserved_of(scenario.price[gpu]):
        return None  # with reserved GPUs, the run has their mean price
    return Warn(f"price of {gpu} has no effect: usd_per_gpu_hour={usd:g} is specified. Remove one of them.")


DRAWN = ("preset:", "synth:")
"""Beginnings of the names of traces that are drawn, not recorded."""
TOO_SHORT = "the run is too short to tell whether the queue stays bounded"
"""Beginning of the warning of a run whose queue may or may not grow without bound."""
HITS = 0.01
"""Minimum prefix cache hit rate at which results are said to depend on it."""
BUSY = 0.7
"""Minimum share of the API processes' time spent on prompts at which requests are said to wait for them."""


def after_run(
    scenario: Scenario, trace: TraceFacts, defaults: VllmDefaults, summary: dict[str, Any], front: FrontTerms
) -> Iterator[str]:
    """Yield notes that depend on the outcome of the run."""
    stable = summary["stability"]
    if summary["requests"]["completed"] and not (stable["unstable"] or stable["decided"]):
        drawn, enough = scenario.trace.startswith(DRAWN), stable["enough_requests"]
        longer = f"a trace of about {enough:,} requests would be enough (or this one with --shape repeat:times=N)"
        would = f"--requests {enough} would be enough" if drawn else longer
        yield Warn(f"{TOO_SHORT}; {would}")
    batch = summary["engine"]["batch_size"]
    most_seqs = scenario.scheduler.get("max_num_seqs")
    if (
        batch
        and not scenario.pools
        and most_seqs is not None
        and most_seqs != defaults.max_num_seqs
        and batch["max"] < most_seqs
    ):
        yield f"scheduler max_num_seqs={most_seqs} is never reached: at most {batch['max']:.0f} requests ran at once"
    tokens = summary["engine"]["tokens_per_step"]
    budget = scenario.scheduler.get("max_num_batched_tokens")
    if (
        tokens
        and not scenario.pools
        and budget is not None
        and budget != defaults.max_num_batched_tokens
        and tokens["max"] < budget
    ):
        most = tokens["max"]
        yield f"scheduler max_num_batched_tokens={budget} is never reached: the largest step had {most:.0f} tokens"
    speculation = summary.get("speculation")
    if scenario.speculation["name"] != "none" and (speculation is None or not speculation["num_drafts"]):
        yield Warn(
            f"speculation {scenario.speculation['name']} only added cost: no draft was ever verified. Remove this "
            "setting."
        )
    used = summary["engine"]["replicas_used"]
    if 0 < used < scenario.replicas * scenario.dp:
        what = f"replicas={scenario.replicas}" + (f" of dp={scenario.dp}" if scenario.dp > 1 else "")
        yield Warn(f"{what}: only {used} of them served a request. Try fewer replicas.")
    beyond = summary["cost_shares"]["extrapolated"]
    if beyond is not None and beyond > 0.3:
        yield Warn(
            f"{beyond:.0%} of the cost is extrapolated beyond the measurements, so latencies are less "
            "certain: compare with a recording of your server (servesim validate)"
        )
    hits = (summary["prefix_cache"] or {}).get("hit_rate")
    if hits is not None and hits >= HITS:
        yield (
            f"prefix cache: {hits:.1%} of queried tokens were found, and latencies depend on this hit rate. Hit "
            "rates were validated on only one recorded server, which served coding agents (within 1 point), and "
            "never on a server that ran short of memory"
        )
    yield from _front_end(front, summary)
    cost = summary["cost_shares"]["roofline"]
    if cost is not None and cost >= 0.999:
        yield Warn(
            "all costs are roofline estimates: no kernel measurement was used. Compare with a recording of your server "
            "(servesim validate)"
        )
    yield from trace.notes


def _front_end(front: FrontTerms, summary: dict[str, Any]) -> Iterator[str]:
    """Yield a note if the API processes limit the run."""
    tokens, duration = summary["throughput"]["total_token_throughput"], summary["duration_s"]
    if not duration or not (front.request_ns or front.token_ns):
        return
    per_s = summary["throughput"]["request_throughput"], tokens - summary["throughput"]["output_throughput"]
    busy = max(per_s[0] * front.request_ns, per_s[1] * front.token_ns) / 1e9 / front.processes  # they work side by side
    if busy >= BUSY:
        yield Warn(
            f"front end: according to the host terms, {front.processes} API server(s) are busy {busy:.0%} of the "
            "time with prompts, so prompts wait there before they reach the queue. Increase engine.api_server_count."
        )


def on_costs(cost: TableCostModel, decode_reach: Mapping[int, int]) -> Iterator[str]:
    """Yield notes on costs that the kernel tables lack. `decode_reach`: the maximum total context attended to in a
    step, by number of decoding sequences."""
    beyond = cost.extrapolated(decode_reach)
    if beyond:
        yield f"extrapolated beyond the kernel tables: {'; '.join(beyond)}"
    for line in cost.suspect:
        yield type(line)(f"kernel tables: {line}")
    if cost.tables is not None and cost.tables.without_error:
        which = ", ".join(cost.tables.without_error) if cost.tables.relative_error is not None else "the kernel tables"
        yield (
            f"uncertainty: {which} do not include the error of repeated measurements, so no interval covers their times"
        )


def on_version(scenario: Scenario, engine: EngineFacts, terms: HostTerms | None) -> Iterator[str]:
    """Yield notes on the gap between the requested engine and the measured one. `engine`: the facts in use."""
    named = f"{engine.engine} {engine.version}" if scenario.preset in (None, engine.engine) else str(scenario.preset)
    if engine.beyond:
        hosts = f", host terms those of {terms.engine}" if terms is not None and terms.engine else ""
        yield Warn(
            f"engine.version={engine.version} is newer than every known version: settings and kernels are those of "
            f"{engine.engine} {engine_facts(engine.engine).version}{hosts}. Measure your server (servesim measure)."
        )
    if scenario.preset is not None and engine_presets()[scenario.preset]["rests_on"].startswith("documentation"):
        kind = (
            str if scenario.preset == engine.engine else Warn
        )  # an engine with entries has measured kernels and hosts
        yield kind(
            f"preset {scenario.preset}: its scheduling rules are known from documentation alone and were never "
            "compared with the engine"
        )
    if terms is not None and terms.engine not in ("", named):
        yield f"no host terms were measured for {named}, so the host terms of {terms.engine} are used"
    if terms is not None and "note" in terms.provenance and not scenario.engine.async_scheduling:
        yield f"host terms {terms.name}: {terms.provenance['note']}"


def on_windows(scenario: Scenario, model: ModelSpec, kv: KVAllocator) -> Iterator[str]:
    """Yield notes on how layers with sliding windows or states are treated in memory."""
    if model.recurrent is not None:
        yield from _on_states(scenario, model, kv)
        return
    layers = [layer for layer in model.layers if layer.owns_kv]
    windows = sum(1 for layer in layers if layer.window)
    disabled = scenario.engine.disable_hybrid_kv_cache_manager
    by_preset = scenario.preset is not None and "disable_hybrid_kv_cache_manager" in preset_settings(
        scenario.preset
    ).get("engine", {})
    if not windows:
        if disabled and not by_preset:
            yield Warn(
                f"disable_hybrid_kv_cache_manager has no effect: {model.name} has no sliding windows. Remove this "
                "setting."
            )
    elif not kv.grouped:
        why = ""
        if scenario.kv["name"] == "prefix-radix":
            why = " (SGLang's separate pool for window layers, swa_full_tokens_ratio, is not modeled)"
        elif scenario.pp > 1 and not disabled:
            why = " (groups of layers across pipeline stages are not modeled)"
        yield f"kv {kv.name}: all {windows} window layers (of {len(layers)} layers) keep every token{why}"
    elif disabled and not by_preset:
        yield Warn(f"disable_hybrid_kv_cache_manager has no effect: kv {kv.name} is set. Remove this setting.")


def _on_states(scenario: Scenario, model: ModelSpec, kv: KVAllocator) -> Iterator[str]:
    states = sum(layer.recurrent for layer in model.layers)
    size = model.state_bytes(scenario.tp) / 2**20
    if kv.grouped:
        block = scenario.engine.block_size
        yield f"{states} layers keep a state ({size:.1f} MiB per request on each GPU), so blocks have {block} tokens"
    else:
        found = (
            "; prefixes match at any token, although SGLang matches only those whose state was kept"
            if kv.shares
            else ""
        )
        yield f"{states} layers keep a state ({size:.1f} MiB per request on each GPU) in a separate pool{found}"


def _oracles(scheduler: Scheduler, kv: KVAllocator) -> Iterator[str]:
    for kind, policy in (("scheduler", scheduler), ("kv", kv)):
        if "output_len" in policy.needs:
            yield Warn(
                f"{kind} {policy.name} is an oracle: it uses true output lengths, which no real engine knows. Treat "
                "its results as a bound."
            )
        if "future" in policy.needs:
            yield Warn(
                f"{kind} {policy.name} is an oracle: it uses future requests, which no real engine knows. Treat its "
                "results as a bound."
            )


def _clients(scenario: Scenario, trace: TraceFacts) -> Iterator[str]:
    clients = scenario.clients
    if clients.max_concurrency is not None:
        if clients.max_concurrency >= len(trace):
            yield (
                f"clients.max_concurrency={clients.max_concurrency} is never reached: there are only {len(trace)} "
                "requests"
            )
        elif len(trace) > 1 and trace.first_ns != trace.last_ns:
            yield "closed loop: requests are sent at their arrival times or when a client is free, whichever is later"
    else:
        for name in ("batch", "turn_ms", "ramp_up_s"):
            if getattr(clients, name) and not (name == "turn_ms" and clients.tool is not None):
                yield Warn(
                    f"clients.{name} has no effect without clients.max_concurrency. Add clients.max_concurrency."
                )
    if clients.burstiness is not None and scenario.rate in (None, float("inf")):
        yield Warn(f"clients.burstiness={clients.burstiness:g} has no effect without a rate. Add --rate.")
    if clients.tool is not None:
        yield (
            f"clients.tool {clients.tool}: its warm-up requests end before the first measured request is sent, so they "
            "are not replayed"
        )
    if clients.retries and not (
        clients.timeout_s or clients.ttft_timeout_s or scenario.engine.max_queued_requests is not None
    ):
        yield Warn(
            f"clients.retries={clients.retries}: without a timeout or a queue limit, only requests that are too long "
            "are retried. Add --clients.timeout-s."
        )


def _predictor(scenario: Scenario, trace: TraceFacts, scheduler: Scheduler) -> Iterator[str]:
    if PREDICTED not in scheduler.needs:
        if scenario.predictor != Scenario.model_fields["predictor"].default:
            yield Warn(
                f"predictor={scenario.predictor} has no effect: scheduler {scheduler.name} uses no predictions. "
                "Remove this setting."
            )
    elif scenario.predictor == "exact":
        yield Warn(
            f"predictor exact: scheduler {scheduler.name} uses true output lengths. Try --predictor random:error=0.3."
        )
    elif scenario.predictor == "max_tokens" and trace.at_caps:
        yield Warn(
            "predictor max_tokens: every request ends at its cap, so predictions are exact. Try --predictor "
            "random:error=0.3."
        )


def _trace_settings(scenario: Scenario, trace: TraceFacts) -> Iterator[str]:
    if scenario.requests is not None and len(trace) < scenario.requests:
        yield Warn(
            f"requests={scenario.requests}: the trace has only {len(trace)}. Use a longer trace, or --shape "
            "repeat:times=N."
        )
    drawn = scenario.trace.startswith(DRAWN)
    draws = scenario.clients.turn_ms or scenario.clients.burstiness
    if scenario.seed != 0 and not drawn and not draws and not scenario.predictor.startswith("random"):
        yield Warn(
            f"seed={scenario.seed} has no effect: a recorded trace is replayed and nothing is random. Compare parts "
            "of the trace instead (--skip)."
        )
    for name in ("sort", "spread_ticks"):
        value = getattr(scenario, name)
        if drawn and value != Scenario.model_fields[name].default:
            yield Warn(f"{name}={value} has no effect: it applies only to trace files. Remove this setting.")
    if len(trace) > 1 and trace.first_ns == trace.last_ns and scenario.clients.max_concurrency is None:
        said = "all requests arrive at once: latencies are like those of a batch job"
        yield said if scenario.rate == float("inf") else Warn(f"{said}. Spread them with --rate.")


def _memory_settings(scenario: Scenario, fitting_blocks: int | None) -> Iterator[str]:
    engine = scenario.engine
    default = type(engine).model_fields["gpu_memory_utilization"].default
    if engine.ignore_memory:
        yield f"ignore_memory: {engine.num_gpu_blocks} KV blocks per replica, regardless of the GPU's memory"
    if engine.gpu_memory_utilization != default and (engine.ignore_memory or engine.num_gpu_blocks != fitting_blocks):
        by = "ignore_memory is on" if engine.ignore_memory else f"num_gpu_blocks={engine.num_gpu_blocks} is specified"
        yield Warn(f"gpu_memory_utilization={engine.gpu_memory_utilization:g} has no effect: {by}. Remove one of them.")
