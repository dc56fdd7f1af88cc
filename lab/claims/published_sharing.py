"""Gains of PagedAttention if requests share memory: samples of one prompt, a common prefix, a chatbot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from servesim.engine.cluster import Cluster
from servesim.run.scenario import Scenario
from servesim.run.setup import set_up
from servesim.run.simulate import simulate
from servesim.run.trace_source import OBJECT
from servesim.traces import open_trace
from servesim.workload.trace import Samples, Trace
from servesim.workload.workload import TraceWorkload

from . import Bars, Given, Outcome, Row, experiment
from .lengths import alpaca, poisson, sharegpt
from .rates import highest

LENGTHS = {"ShareGPT": sharegpt, "Alpaca": alpaca}
ORACLE = {"name": "contiguous", "reservation": "oracle"}
ORCA = {"scheduler": "selective", "kv": ORACLE}
FUSED = {"scheduler": "selective:fused_attention=true", "kv": ORACLE}


@experiment(
    "sharing",
    group="published",
    claim="Shared blocks save memory: samples of one prompt up to 30 %, common prefixes up to 3.6 times the rate",
    source="Kwon et al., SOSP 2023, figures 15, 16 and 17 (A100-40G)",
)
def sharing(given: Given) -> Outcome:
    """Run figures 15 (parallel sampling), 16 and 17."""
    outcome = Outcome()
    _parallel(outcome, given)
    _prefix(outcome, given)
    _chatbot(outcome, given)
    why = "beam search, whose beams fork and end at every token, is not simulated"
    for workload, text in (("Alpaca", "37.6 to 55.2 %"), ("ShareGPT", "44.3 to 66.3 %")):
        outcome.add(Row(f"memory saved by beam search, {workload}", text, "-", "out of reach", why))
    what = "rate against Orca (Oracle), Alpaca, beams of 6"
    outcome.add(Row(what, "2.3 x", "-", "out of reach", f"figure 14; {why}"))
    outcome.notes.append("samples are forked and copy on write as in vLLM V0; prefixes are shared by the prefix cache")
    return outcome


def saved(given: Given, workload: str, samples: int) -> float:
    """Return the ratio of blocks saved by sharing between samples of one prompt to the blocks without sharing: the time
    mean while requests arrive, after the first third. Steps run one at a time, since memory is read after each."""
    rules, load = given["parallel"], given["parallel"]["workloads"][workload]
    count = load["requests"]
    trace = poisson(workload, LENGTHS[workload](count, 0), load["rate"] * 2 / max(samples, 2), 0)
    further = Samples.of(np.full(count, samples - 1), np.repeat(trace.output_len, samples - 1))
    scenario = {**given["base"], "model": rules["model"], "kv": rules["kv"], "trace": f"{OBJECT}{workload}"}
    setup = set_up(Scenario.of(scenario), replace(trace, samples=further))
    core = setup.cores[0]
    workload_of = TraceWorkload(setup.trace, setup.predicted, form=core.scheduler.samples)
    cluster = Cluster(workload_of, setup.engine_pools, setup.router, mode="reference")
    end = int(trace.arrival_ns[-1])
    cluster.start()
    held_ns = shared_ns = 0
    while cluster.now_ns < end:
        before, (held, shared) = cluster.now_ns, core.kv.sharing()
        if not cluster.step():
            break
        if before >= end // 3:
            held_ns += held * (cluster.now_ns - before)
            shared_ns += shared * (cluster.now_ns - before)
    return shared_ns / held_ns


def sustained(given: Given, rules: Given, policies: Given, trace: Callable[[int], Trace]) -> float:
    """Return the highest rate with an acceptable mean latency per output token. `trace` builds N requests at a given
    rate."""

    def holds(rate: float) -> bool:
        drawn = trace(max(int(rate * rules["seconds"]), 100)).with_rate(rate)
        requests = simulate({**given["base"], "model": rules["model"], **policies}, trace=drawn).requests
        latency = (requests["finished_ns"] - requests["arrival_ns"]) / requests["output_len"]
        return bool(latency.mean() <= 1e9 * given["hold_s"])

    return highest(holds, *given["rates"])


def _parallel(outcome: Outcome, given: Given) -> None:
    samples, bars = given["parallel"]["samples"], {}
    for workload, load in given["parallel"]["workloads"].items():
        percents = [100 * saved(given, workload, n) for n in samples]
        for i, published in ((0, load["published"][0]), (-1, load["published"][1])):
            outcome.holds(
                f"memory saved by {samples[i]} samples, {workload}",
                f"{published:g} %",
                f"{percents[i]:.1f} %",
                abs(percents[i] - published) <= 2.5,
                cause="lengths are statistics of the data sets, see pagedattention",
            )
        bars[workload] = percents
    said = "; ".join(f"{workload}: {', '.join(f'{p:.1f}' for p in percents)} %" for workload, percents in bars.items())
    rows: dict[str, list[float | None]] = {f"{n} samples": [p[i] for p in bars.values()] for i, n in enumerate(samples)}
    outcome.figures.append(
        Bars(
            name="saved",
            title="KV memory saved by sharing the prompt",
            alt=f"With {', '.join(map(str, samples))} samples of each request, {said}.",
            x_label="% of the memory without sharing",
            rows=rows,
            series=tuple(bars),
        )
    )


def _prefix(outcome: Outcome, given: Given) -> None:
    rules = given["prefix"]
    for length, published in rules["published"].items():
        ratio, fused = prefix_gains(given, length)
        outcome.near(
            f"rate against Orca (Oracle), {length} tokens in common",
            published,
            ratio,
            "x",
            within=0.15,
            note=f"{fused:.2f} x if Orca had one attention kernel for all requests, too; sentences are assumed",
            cause="what the rest of a request needs decides how much a common part saves, and how Orca's attention is "
            "computed, since its requests are short and many",
        )


def prefix_gains(given: Given, length: int) -> tuple[float, float]:
    """Return the ratio of vLLM's rate with the prefix in its cache to the rate of Orca (Oracle), which computes the
    prefix every time, and to the rate of Orca with one attention kernel."""
    rules = given["prefix"]
    low, high = _bounds(rules["sentence"])
    spec = f"synth:prompt=uniform({low + length},{high + length}),output={rules['answer']}"

    def trace(count: int) -> Trace:
        drawn: Trace = open_trace(f"{spec},prefix=shared(groups=1,length={length})", requests=count)
        return drawn

    ours, orca, fused = (sustained(given, rules, kv, trace) for kv in ({"kv": "prefix-hash"}, ORCA, FUSED))
    return ours / orca, ours / fused


def _bounds(text: str) -> tuple[int, int]:
    low, high = text.removeprefix("uniform(").removesuffix(")").split(",")
    return int(low), int(high)


def _chatbot(outcome: Outcome, given: Given) -> None:
    rules = given["chatbot"]

    def trace(count: int) -> Trace:
        output = np.minimum(sharegpt(count, 0)[1], rules["most"])
        drawn = poisson("chatbot", (np.full(count, rules["prompt"]), output), 1.0, 0)
        return replace(drawn, max_tokens=np.full(count, rules["most"]), stop=output < rules["most"])

    ours = sustained(given, rules, {"kv": "paged"}, trace)
    ratios: dict[str, Any] = {}
    for reservation in rules["reservations"]:
        kv = {"name": "contiguous", "reservation": reservation}
        ratios[reservation] = ours / sustained(given, rules, {"scheduler": "selective", "kv": kv}, trace)
    for name, ratio in ratios.items():
        outcome.near(
            f"chatbot, rate against Orca ({name.capitalize()})",
            rules["published"],
            ratio,
            "x",
            within=0.15,
            note=f"vLLM {ours:.2f} requests/s",
            cause="every prompt is taken to be cut, and answers are those of single turns; the paper's lengths are not "
            "published",
        )
