"""JSON of `vllm bench serve --save-result --save-detailed`.

As in vLLM, arrays contain every request, with zeros, and a message in `errors`, for failed ones. Aggregates cover the
completed requests, std is the population standard deviation, and arrays are in seconds but aggregates in milliseconds.
`itls` are gaps between tokens; within one speculative step, all but the first are 0. The clock is simulated, so `date`
is its zero and `start_times` count from there. Values that a replayed trace lacks (burstiness) are null.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from servesim.contracts.request import State
from servesim.metrics.requests import SECOND
from servesim.reports.export import one_run
from servesim.reports.tokens import Tokens
from servesim.run.result import Result

STATISTICS = (("mean", np.mean), ("median", np.median), ("std", np.std))
PERCENTILES = (50, 90, 95, 99)
EPOCH = "19700101-000000"


def write(folder: Path, file: TextIO) -> None:
    """Write the record of a run."""
    json.dump(record(one_run(folder, "vllm-bench")), file, indent=1, allow_nan=False)
    file.write("\n")


def record(result: Result) -> dict[str, Any]:
    """Return the record as a dictionary."""
    summary, scenario, frame = result.summary, result.scenario, result.requests
    tokens = Tokens(result)
    done = (frame["state"] == State.FINISHED).to_numpy()
    times = [tokens.of(i) if done[i] else np.empty(0, dtype=np.int64) for i in range(len(frame))]
    gaps = [np.diff(t) / SECOND for t in times]
    arrays = {
        "input_lens": frame["prompt_len"].to_numpy(),
        "output_lens": np.where(done, frame["output_len"], 0),
        "ttfts": np.where(done, frame["first_token_ns"] - frame["arrival_ns"], 0) / SECOND,
        "latencies": np.where(done, frame["last_token_ns"] - frame["arrival_ns"], 0) / SECOND,
        "start_times": frame["arrival_ns"].to_numpy() / SECOND,
        "queue_times": np.where(done, frame["scheduled_ns"] - frame["arrival_ns"], 0) / SECOND,
    }
    return {
        "date": EPOCH,
        "backend": "servesim",
        "model_id": scenario.model,
        "tokenizer_id": scenario.model,
        "num_prompts": len(frame),
        "request_rate": scenario.rate if isinstance(scenario.rate, float) else _rate(arrays["start_times"]),
        "burstiness": None,
        "max_concurrency": scenario.clients.max_concurrency,
        **_totals(summary, arrays, done),
        **{name: values.tolist() for name, values in arrays.items()},
        "itls": [g.tolist() for g in gaps],
        "errors": ["" if ok else f"{State(state).name.lower()}: {reason}" for ok, state, reason in
                   zip(done.tolist(), frame["state"].tolist(), frame["reason"].tolist(), strict=True)],
        **_aggregates(arrays, gaps, done),
        **_speculation(summary["speculation"]),
    }  # fmt: skip


def _rate(starts: Any) -> float | str:
    """Return the mean arrival rate, or "inf" if all requests arrive simultaneously."""
    span = float(starts.max() - starts.min()) if len(starts) else 0.0
    return (len(starts) - 1) / span if span else "inf"


def _totals(summary: dict[str, Any], arrays: dict[str, Any], done: Any) -> dict[str, Any]:
    duration = summary["duration_s"]
    prompt, output = int(arrays["input_lens"][done].sum()), int(arrays["output_lens"].sum())
    goodput = summary["goodput"]

    def per_second(amount: float) -> float:
        return amount / duration if duration else 0.0

    return {
        "duration": duration,
        "completed": int(done.sum()),
        "failed": int((~done).sum()),
        "total_input_tokens": prompt,
        "total_output_tokens": output,
        "request_throughput": per_second(int(done.sum())),
        "request_goodput": goodput["request_goodput"] if goodput else None,
        "output_throughput": per_second(output),
        "total_token_throughput": per_second(prompt + output),
        "max_concurrent_requests": summary["requests"]["max_concurrency"],
    }


def _aggregates(arrays: dict[str, Any], gaps: list[Any], done: Any) -> dict[str, float]:
    ttft, e2el, output = (arrays[name][done] for name in ("ttfts", "latencies", "output_lens"))
    several = output > 1
    values = {
        "ttft": ttft,
        "tpot": (e2el - ttft)[several] / (output[several] - 1),
        "itl": np.concatenate([*gaps, np.empty(0)]),
        "e2el": e2el,
    }
    found: dict[str, float] = {}
    for metric, seconds in values.items():
        ms = seconds * 1e3 if len(seconds) else np.zeros(1)
        found |= {f"{name}_{metric}_ms": float(of(ms)) for name, of in STATISTICS}
        found |= {f"p{q}_{metric}_ms": float(np.percentile(ms, q)) for q in PERCENTILES}
    return found


def _speculation(figures: dict[str, Any] | None) -> dict[str, Any]:
    """Return the counts of speculative decoding or, as in vLLM, nothing if it is not used."""
    if figures is None:
        return {}
    names = ("acceptance_rate", "acceptance_length", "num_drafts", "draft_tokens", "accepted_tokens")
    return {f"spec_decode_{name}": figures[name] for name in (*names, "per_position_acceptance_rates")}
