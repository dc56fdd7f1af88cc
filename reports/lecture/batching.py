"""Slots of a batch, and the effect of a long prompt on the other requests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from servesim.reports.figures.kinds import Curve, Lines, Spans
from servesim.reports.words import percent
from servesim.run.simulate import simulate

PLACES = 6
AT_ONCE: dict[str, Any] = {"rate": float("inf"), "host": "none", "conclude": False}
"""Settings under which all requests arrive simultaneously and the host takes no time, so that only kernels count."""
BUDGETS = (256, 512, 1024, 2048, 4096, 8192)


def slots(machine: dict[str, Any]) -> Spans:
    """Serve the same requests in static batches that wait for their longest output, and in slots that are reused
    immediately."""
    trace = "synth:rate=1,prompt=100,output=lognormal(p50=80,p95=320)"
    rows: dict[str, list[tuple[float, float, str]]] = {}
    ends, idle = {}, {}
    for label, scheduler in (
        ("static", f"static:max_batch_size={PLACES}"),
        ("continuous", f"vllm:max_num_seqs={PLACES}"),
    ):
        found = simulate(**machine, trace=trace, requests=4 * PLACES, scheduler=scheduler, **AT_ONCE).requests
        begin, end = (found[name].to_numpy() / 1e9 for name in ("scheduled_ns", "last_token_ns"))
        leaves = [end[begin == at].max() for at in begin] if label == "static" else end
        places = _places(begin, np.array(leaves))
        for place in range(PLACES):
            mine = [i for i in np.argsort(begin, kind="stable") if places[i] == place]
            spans = [(begin[i], end[i], "producing tokens") for i in mine]
            spans += [(end[i], leaves[i], "held, and idle") for i in mine if leaves[i] > end[i]]
            rows[f"{label} {place + 1}"] = spans
        ends[label] = float(end.max())
        idle[label] = 1 - float((end - begin).sum()) / (PLACES * float(end.max() - begin.min()))
    caption = (
        f"{4 * PLACES} requests, {PLACES} slots. Static batches wait for their longest answer: slots are idle "
        f"{percent(idle['static'])} of the time, and all requests are done after {ends['static']:.1f} s. "
        "Continuous batching gives a slot to the next request at once: slots are idle "
        f"{percent(idle['continuous'])} of the time, and all requests are done after {ends['continuous']:.1f} s."
    )
    series = ("producing tokens", "held, and idle")
    return Spans("batching", "Slots of a batch", caption, "seconds", rows, series, caption)


def _places(begin: Any, leave: Any) -> list[int]:
    """Return the slot of each request: the lowest that is free when it begins."""
    free_at = [-1.0] * PLACES
    found = [0] * len(begin)
    for i in np.argsort(begin, kind="stable"):
        found[i] = next(place for place in range(PLACES) if free_at[place] <= begin[i] + 1e-9)
        free_at[found[i]] = leave[i]
    return found


def chunks(machine: dict[str, Any]) -> Lines:
    """Serve short requests that decode while long prompts arrive, for each token budget per step."""
    short = [(0, 64, 400)] * 32
    long = [(int((0.5 + 0.4 * i) * 1e9), 6000, 8) for i in range(6)]
    trace = pd.DataFrame(short + long, columns=["arrival_ns", "prompt_len", "output_len"])
    gaps, first = [], []
    for budget in BUDGETS:
        result = simulate(**machine, trace=trace, scheduler=f"vllm:max_num_batched_tokens={budget}", conclude=False)
        gaps.append(result.summary["latency_ms"]["itl"]["max"])
        waits = result.requests.sort_values("row")
        first.append(float((waits.first_token_ns - waits.arrival_ns).to_numpy()[len(short) :].mean() / 1e6))
    caption = (
        f"32 requests are decoding when six prompts of 6,000 tokens arrive. In chunks of {BUDGETS[0]}, the "
        f"longest gap between tokens is {gaps[0]:.0f} ms and a long prompt takes {first[0]:.0f} ms; in chunks of "
        f"{BUDGETS[-1]:,}, the longest gap is {gaps[-1]:.0f} ms and a long prompt takes {first[-1]:.0f} ms."
    )
    curves = [Curve("longest gap between tokens", BUDGETS, gaps), Curve("first token of a long prompt", BUDGETS, first)]
    return Lines("chunks", "Prompts in chunks", caption, "token budget per step", "ms", curves, "xy", caption=caption)
