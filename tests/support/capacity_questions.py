"""Forty capacity questions, each asked with three seeds and three lengths, to see whether the answers can be believed.

All nine 95 % intervals of a question should meet, and none should lie wholly beyond 1.2 times another. Fresh seeds at
ten times the length should meet the SLO at the low end of an interval, and miss it at 1.15 times the high end.

`python -m tests.support.capacity_questions [--only NAMES] [--ends] --out FILE` asks them and appends a JSON line for
each; a question already in the file is not asked again. `--ends` runs the fresh seeds at the ends of the interval
of the shortest runs with the first seed. `--summary FILE` prints what the lines say.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import servesim
from servesim.experiments.goals import goals_of
from servesim.experiments.outcome import Measuring, judge
from servesim.experiments.replicates import Replicates
from servesim.experiments.run_metrics import Run
from servesim.run.scenario import Scenario
from servesim.workload.trace import Trace
from tests.support.documents import SHARED

LENGTHS, SEEDS = (500, 1_000, 2_000), (0, 100, 200)
BEYOND, MUCH = 1.2, 1.15
"""Ratio of two intervals that no question may show, and how far beyond an interval a load must fail."""
FRESH, TIMES, OF_FRESH = 20, 10, 18
"""Number of fresh seeds at each end, how much longer their runs are, and how many of them must agree."""
ROWS = 100
"""Number of successive rows of a log that are drawn together."""
ONE: dict[str, Any] = {"gpu": "h200", "model": "llama-3.1-8b", "slo": "ttft:500,tpot:50"}
SMALL: dict[str, Any] = {"gpu": "h100", "model": "llama-3.2-1b", "slo": "ttft:100,tpot:20"}
CHAT = "synth:prompt=lognormal(400,1500),output=lognormal(120,400)"
BRIEF = "synth:prompt=lognormal(1500,5000),output=lognormal(16,60)"
TURNS = "synth:prompt=300,output=80,prefix=shared(groups=20,length=1000)"
AZURE = "azure/AzureLLMInferenceTrace_"
QUESTIONS: dict[str, dict[str, Any]] = {
    "readme": ONE | {"trace": "preset:azure-conv-2023"},
    "conv h100": ONE | {"trace": "preset:azure-conv-2023", "gpu": "h100"},
    "conv .95": ONE | {"trace": "preset:azure-conv-2023", "attainment": 0.95},
    "conv percentiles": ONE | {"trace": "preset:azure-conv-2023", "slo": "ttft:p95<800ms,tpot:p90<30ms"},
    "conv fp8": ONE | {"trace": "preset:azure-conv-2023", "dtype": "fp8"},
    "conv small": SMALL | {"trace": "preset:azure-conv-2023"},
    "conv l40s": ONE | {"trace": "preset:azure-conv-2023", "gpu": "l40s", "slo": "ttft:2000,tpot:100"},
    "conv tp2": ONE | {"trace": "preset:azure-conv-2023", "tp": 2},
    "code": ONE | {"trace": "preset:azure-code-2023", "slo": "ttft:1000,tpot:50"},
    "code h100": ONE | {"trace": "preset:azure-code-2023", "gpu": "h100", "slo": "ttft:2000"},
    "code p90": ONE | {"trace": "preset:azure-code-2023", "slo": "ttft:p90<500ms"},
    "mooncake": ONE | {"trace": "preset:mooncake-conversation", "slo": "ttft:p90<8s"},
    "mooncake prefixes": ONE | {"trace": "preset:mooncake-conversation", "slo": "ttft:p90<8s", "kv": "prefix-hash"},
    "chat": ONE | {"trace": CHAT},
    "chat tight": ONE | {"trace": CHAT, "slo": "ttft:150,tpot:15"},
    "chat loose": ONE | {"trace": CHAT, "slo": "ttft:5000,tpot:100"},
    "chat e2e": ONE | {"trace": CHAT, "slo": "e2el:10000"},
    "chat static": ONE | {"trace": CHAT, "scheduler": "static", "slo": "ttft:5000"},
    "chat orca": ONE | {"trace": CHAT, "scheduler": "selective"},
    "chat sglang": ONE | {"trace": CHAT, "scheduler": "sglang"},
    "chat sarathi": ONE | {"trace": CHAT, "scheduler": "sarathi"},
    "chat batch 32": ONE | {"trace": CHAT, "scheduler": "vllm:max_num_seqs=32"},
    "brief": SMALL | {"trace": BRIEF, "slo": "ttft:200"},
    "brief 8b": ONE | {"trace": BRIEF, "slo": "ttft:1000"},
    "bursts": ONE | {"trace": CHAT + ",arrivals=gamma(cv=3)"},
    "switched": ONE | {"trace": CHAT + ",arrivals=mmpp(ratio=4,on=5,off=15)", "slo": "ttft:1000,tpot:50"},
    "constant": ONE | {"trace": CHAT + ",arrivals=constant"},
    "prefixes": ONE | {"trace": TURNS, "kv": "prefix-hash"},
    "two replicas": ONE | {"trace": CHAT, "replicas": 2, "router": "least-requests"},
    "four by turns": SMALL | {"trace": BRIEF, "replicas": 4, "router": "round-robin", "slo": "ttft:200"},
    "aware": ONE | {"trace": TURNS, "replicas": 2, "kv": "prefix-hash", "router": "sglang-cache-aware"},
    "scaled": ONE | {"trace": CHAT, "replicas": 2, "scaler": "hpa:target=8,max=4", "router": "least-requests",
                     "slo": "ttft:p95<2s"},
    "scaled small": SMALL | {"trace": BRIEF, "replicas": 2, "scaler": "hpa:target=4,max=3", "slo": "ttft:p95<1s"},
    "apart": ONE | {"trace": CHAT, "pd": "1x1:1x1"},
    "apart brief": ONE | {"trace": BRIEF, "pd": "2x1:1x1", "slo": "ttft:1000,tpot:30"},
    "log conv": ONE | {"log": AZURE + "conv.csv"},
    "log conv p95": ONE | {"log": AZURE + "conv.csv", "slo": "ttft:p95<500ms,tpot:p95<50ms"},
    "log code": ONE | {"log": AZURE + "code.csv", "slo": "ttft:2000"},
    "log mooncake": ONE | {"log": "mooncake/conversation_trace.jsonl", "slo": "ttft:p90<8s", "rows": 500},
    "log small": SMALL | {"log": AZURE + "conv.csv"},
}  # fmt: skip


def resampled(log: Path, requests: int, seed: int, rows: int) -> Trace:
    """Return a trace of blocks of successive rows of a log, drawn with replacement, each with its own gaps."""
    trace = servesim.load_trace(str(log))
    gaps = np.diff(trace.arrival_ns, append=trace.arrival_ns[-1] + np.ptp(trace.arrival_ns) // len(trace))
    first = np.random.default_rng(seed).integers(0, len(trace) - rows, math.ceil(requests / rows))
    picked = (first[:, None] + np.arange(rows)).ravel()[:requests]
    arrival = np.concatenate(([0], np.cumsum(gaps[picked])[:-1]))
    return Trace.from_lengths(log.stem, arrival, trace.prompt_len[picked], trace.output_len[picked])


def workload(question: dict[str, Any], requests: int, seed: int) -> dict[str, Any]:
    """Return the settings of a question's workload with this length and seed."""
    if "log" not in question:
        return {"trace": question["trace"], "requests": requests, "seed": seed}
    return {"trace": resampled(SHARED / "traces" / question["log"], requests, seed, question.get("rows", ROWS))}


def asked(question: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a question other than its workload."""
    return {key: value for key, value in question.items() if key not in ("trace", "log", "rows")}


def intervals(question: dict[str, Any]) -> Iterator[list[float]]:
    """Yield the rate and its interval for each seed and length."""
    for requests in LENGTHS:
        for seed in SEEDS:
            given = asked(question) | workload(question, requests, seed)
            row = servesim.capacity(**given, intervals=False, jobs=1, by_formula=True).attrs["document"]["rows"][0]
            found = [row[name] for name in ("rate", "rate_low", "rate_high")]
            yield [requests, seed, *(math.nan if x is None else x for x in found)]


def meeting(question: dict[str, Any], rate: float) -> int:
    """Return in how many fresh runs at this rate the SLO is met."""
    given, attainment = asked(question), question.get("attainment", 0.99)
    given.pop("attainment", None)
    fresh = range(1_000, 1_000 + FRESH)
    return sum(meets(given | workload(question, TIMES * LENGTHS[0], seed), attainment, rate) for seed in fresh)


def meets(given: dict[str, Any], attainment: float, rate: float) -> bool:
    """Return whether a run at a rate meets its SLO."""
    trace, scenario = given["trace"], Scenario.of({**given, "trace": "synth:"})
    with tempfile.TemporaryDirectory() as folder:
        servesim.simulate(**{key: value for key, value in given.items() if value is not trace}, trace=trace, rate=rate,
                          out=folder)  # fmt: skip
        run = Run.load(Path(folder))
    goals, repeats = goals_of(scenario, attainment), Replicates("seeds", ({},))
    measuring = Measuring([], goals, repeats, repeats.margins(None, None), 10.0, 300)
    return judge([measuring.outcome(run)], goals).carried


def summary(path: Path) -> None:
    """Print, for each question, whether its intervals meet and how the fresh seeds went."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    meet = near = 0
    for line in lines:
        low, high = (max(row[3] for row in line["found"]), min(row[4] for row in line["found"]))
        meet += low <= high
        near += low <= BEYOND * high
        rates = ", ".join(f"{row[2]:.4g} ({row[3]:.4g} to {row[4]:.4g})" for row in line["found"])
        print(
            f"{line['name']:18} {'meet' if low <= high else f'apart by {low / high:.2f}'}  {rates}  {line.get('ends')}"
        )
    ends = [line["ends"] for line in lines if line.get("ends")]
    print(f"{meet} of {len(lines)} meet, {near} within {BEYOND:g}; ends: {sum(a >= OF_FRESH for a, _ in ends)} low and "
          f"{sum(b <= FRESH - OF_FRESH for _, b in ends)} high ones of {len(ends)}")  # fmt: skip


def main() -> None:
    """Ask the questions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(QUESTIONS))
    parser.add_argument("--ends", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("capacities.jsonl"))
    parser.add_argument("--summary", type=Path)
    options = parser.parse_args()
    if options.summary:
        return summary(options.summary)
    known = {json.loads(line)["name"] for line in options.out.read_text().splitlines()} if options.out.exists() else ()
    for name in options.only:
        if name in known:
            continue
        found = list(intervals(QUESTIONS[name]))
        ends = [meeting(QUESTIONS[name], rate) for rate in (found[0][3], MUCH * found[0][4])] if options.ends else None
        with options.out.open("a") as file:
            file.write(json.dumps({"name": name, "found": found, "ends": ends}) + "\n")
    summary(options.out)


if __name__ == "__main__":
    main()
