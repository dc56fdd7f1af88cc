"""llm-d's two recorded ladders of routers (llm-d-kv-cache-manager at a378f5b, benchmarking/{73,37}-capacity), simulated
beside what was measured.

    python -m servesim_lab.ladders FOLDER                           # both ladders, all routers
    python -m servesim_lab.ladders FOLDER --only 73 --router estimated --rate 3 --rate 35

FOLDER has llmd_kvcache_73pct_qps.csv and llmd_kvcache_37pct_qps.csv, the tables of the two READMEs.

Prompts, stages and scorers are those of the READMEs. Prompts are longer there than asked for: inference-perf decodes
random tokens, and the text has more of them (means of 20 prompts, Qwen3's and Llama 3's tokenizers). Every stage asks
for the prompts in the same order from the first on, and begins when the one before is served. Engines run eagerly, as
in llm-d's guide of that time; `ladders-host.yaml` has the one number that was chosen on a ladder.
"""

from __future__ import annotations

import csv
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import servesim
from servesim.checking.world import toy_trace
from servesim.workload.trace import Trace

HOST = Path(__file__).with_name("ladders-host.yaml")
OUTPUT = 1000
"""Output tokens of every request."""
BLOCK = 64
"""Tokens per block of the engines' KV caches."""
POLLED_S = 0.05
"""Time between two polls of an engine's metrics (--refresh-metrics-interval)."""
IDLE_S = 400.0
"""Between two stages: longer than any queue lasts."""
BROKEN_S = 5.0
"""Mean time to first token from which a stage counts as broken, since requests queue: one alone takes 1 s at most."""

Stage = tuple[float, float]
"""Requests/s and seconds."""


@dataclass(frozen=True)
class Ladder:
    """Cluster, prompts, stages and routers of a ladder."""

    model: str
    tp: int
    replicas: int
    kv_tokens: int
    """KV tokens per replica."""
    groups: int
    each: int
    """Prompts of a group, which have their head in common."""
    head: int
    tail: int
    stages: Sequence[Stage]
    """Stages, the first of which only warms up."""
    spread: bool
    """Whether a stage has exactly rate x seconds requests in its seconds (load type constant, or else poisson)."""
    routers: dict[str, str]
    """Routers by the name in the table."""


def _routers(precise: str, approximate: str, prefix_weight: int, wide: float) -> dict[str, str]:
    """Return the routers of a ladder, given the weights of precise ones, the name of the approximate one in the table,
    its weight of prefixes, and the mean bytes of a token."""
    return {
        "precise": f"llm-d-precise:{precise},speculative_ttl_s=0,min_max=true",
        approximate: f"llm-d-text:prefix_weight={prefix_weight},bytes_per_token={wide}",
        "load": "llm-d-text:prefix_weight=0",
        "random": "random",
    }


_SECONDS_73 = (20, 20, 20, 38, 34, 30, 25, 21, 38, 36, 33, 30, 29, 27, 26, 25)
_RATES_73 = (3, 10, 15, 20, 22, 25, 30, 35, 40, 43, 46, 49, 52, 55, 57, 60)
LADDERS = {
    "73": Ladder(
        model="qwen3-32b",
        tp=2,
        replicas=8,
        kv_tokens=307_328,
        groups=150,
        each=5,
        head=6314,
        tail=1259,
        stages=((15, 50), *zip(_RATES_73, _SECONDS_73, strict=True)),
        spread=False,
        routers=_routers("prefix_weight=3,queue_weight=2,kv_utilization_weight=2", "estimated", 1, 6.1),
    ),
    "37": Ladder(
        model="llama-3.1-70b",
        tp=4,
        replicas=4,
        kv_tokens=461_376,
        groups=83,
        each=3,
        head=8348,
        tail=1044,
        stages=((9, 30), (3, 210), (4, 180), (5, 120), (6, 120), (8, 90), (10, 70), (12, 60), (15, 50), (20, 50)),
        spread=True,
        routers=_routers("prefix_weight=2,queue_weight=1,kv_utilization_weight=1", "default", 2, 6.2),
    ),
}
"""Ladders by the share of the KV memory, in %, that one copy of all prompts (73) or heads (37) takes."""


class Found(NamedTuple):
    """Means of one stage."""

    ttft_s: float
    tpot_s: float
    output_tok_s: float


def trace_of(ladder: Ladder, stages: Sequence[Stage], seed: int = 0) -> tuple[Trace, NDArray[np.int64]]:
    """Return the requests of the stages, and the number of each one's stage."""
    draws = np.random.default_rng(seed)
    order = draws.permutation(ladder.groups * ladder.each)
    arrivals: list[int] = []
    asked: list[int] = []
    of_stage: list[int] = []
    now = 0.0
    for stage, (rate, seconds) in enumerate(stages):
        count = int(rate * seconds)
        gaps = draws.exponential(1 / rate, count)
        if ladder.spread:
            gaps *= seconds / gaps.sum()
        times = now + np.cumsum(gaps)
        arrivals += (times * 1e9).astype(np.int64).tolist()
        asked += [int(order[i % len(order)]) for i in range(count)]
        of_stage += [stage] * count
        now = float(times[-1]) + IDLE_S
    runs = [[(1 + prompt // ladder.each, ladder.head), (1_000_000 + prompt, ladder.tail)] for prompt in asked]
    lengths = [ladder.head + ladder.tail] * len(asked)
    return toy_trace(arrivals, lengths, [OUTPUT] * len(asked), runs=runs), np.array(of_stage)


def climb(ladder: Ladder, router: str, rates: Sequence[float] = (), seed: int = 0) -> dict[float, Found]:
    """Return what a router of the ladder's table gives at these rates (none: all), after the warm-up."""
    stages = [ladder.stages[0], *(one for one in ladder.stages[1:] if not rates or one[0] in rates)]
    trace, of_stage = trace_of(ladder, stages, seed)
    requests = servesim.simulate(
        trace=trace,
        model=ladder.model,
        gpu="h100",
        tp=ladder.tp,
        replicas=ladder.replicas,
        router=ladder.routers[router],
        engine={"num_gpu_blocks": ladder.kv_tokens // BLOCK, "block_size": BLOCK},
        cluster={"report_every_s": POLLED_S},
        host=str(HOST),
        seed=seed,
        conclude=False,
    ).requests.sort_values("row")
    arrival, first, last = (
        requests[name].to_numpy() / 1e9 for name in ("arrival_ns", "first_token_ns", "last_token_ns")
    )
    found: dict[float, Found] = {}
    for k, (rate, _) in enumerate(stages[1:], 1):
        mine = of_stage == k
        tokens = mine.sum() * OUTPUT / (last[mine].max() - arrival[mine].min())
        tpot = ((last - first)[mine] / (OUTPUT - 1)).mean()
        found[rate] = Found(float((first - arrival)[mine].mean()), float(tpot), float(tokens))
    return found


def knee(ttft_s: dict[float, float]) -> float | None:
    """Return the lowest rate from which on every stage is broken; None if the last one is not."""
    broken = None
    for rate in sorted(ttft_s, reverse=True):
        if ttft_s[rate] < BROKEN_S:
            break
        broken = rate
    return broken


def measured(folder: Path, share: str) -> dict[str, dict[float, Found]]:
    """Return the table of a ladder, by router and rate. The client counted two chunks per token, one of them empty, so
    the time per token is twice its mean gap."""
    found: dict[str, dict[float, Found]] = {}
    with (folder / f"llmd_kvcache_{share}pct_qps.csv").open() as table:
        for row in csv.DictReader(table):
            if row["qps"] != "summary":
                figures = Found(
                    float(row["TTFT mean (s)"]), 2 * float(row["ITL mean (s)"]), float(row["Output toks/s"])
                )
                found.setdefault(row["Experiment"].removesuffix("-scheduling"), {})[float(row["qps"])] = figures
    return found


def lines(share: str, folder: Path, routers: Sequence[str], rates: Sequence[float], seed: int) -> Iterator[str]:
    """Return the lines of a ladder: its table, router by router, and each router's knee."""
    ladder, truth = LADDERS[share], measured(folder, share)
    yield f"{share} % ladder, measured in brackets"
    for router in [name for name in ladder.routers if not routers or name in routers]:
        found = climb(ladder, router, rates, seed)
        yield f"{router}\n  rate   TTFT, s            TPOT, ms       output tokens/s"
        for rate, own in found.items():
            there = truth[router][rate]
            yield (
                f"{rate:>6g} {own.ttft_s:7.3f} ({there.ttft_s:6.3f})   {own.tpot_s * 1e3:4.1f} "
                f"({there.tpot_s * 1e3:2.0f})   {own.output_tok_s:7.0f} ({there.output_tok_s:6.0f})"
            )
        knees = [knee({rate: of[rate].ttft_s for rate in found}) for of in (found, truth[router])]
        yield "  broken from {}/s on ({}/s)".format(*("no rate" if at is None else f"{at:g}" for at in knees))


def main(argv: Sequence[str] | None = None) -> None:
    """Print the ladders."""
    parser = ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=LADDERS, help="one of the ladders")
    parser.add_argument("--router", action="append", default=[], help="one of the routers; may be given several times")
    parser.add_argument("--rate", action="append", type=float, default=[], help="one of the rates; may be given again")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    known = {router for share in [args.only] if args.only for router in LADDERS[share].routers} or {
        router for ladder in LADDERS.values() for router in ladder.routers
    }
    if unknown := [router for router in args.router if router not in known]:
        parser.error(f"unknown router {unknown[0]}; choose from {', '.join(sorted(known))}")
    for share in [args.only] if args.only else list(LADDERS):
        for line in lines(share, args.folder, args.router, args.rate, args.seed):
            print(line, flush=True)


if __name__ == "__main__":
    main()
