"""Check of `servesim recommend`: is its winner the best of a space, and what does the search cost?

For each workload and model, the search runs, and then deployments are drawn at random from the whole space (numbers
from whole ranges, not from the searched grid). A drawn deployment runs once, at the load at which it would cost as much
as the winner less `MARGIN`, unless the cost model's bound rules that out; only one that carries it is measured. The
winner and the best drawn one are judged again at ten times the length with other seeds. Every result is kept, and a
rerun computes only what is missing.

    python -m lab.recommended --out DIR [--cells chat/llama-3.1-8b,...] [--points 100]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from servesim.contracts.searched import Span
from servesim.errors import UserError
from servesim.experiments.bounds import Work, optimistic_rate, tpot_limit
from servesim.experiments.capacity import Terms, opened
from servesim.experiments.objects import Objects
from servesim.experiments.recommend.lengths import Length
from servesim.experiments.recommend.question import Question
from servesim.experiments.recommend.race import Entrant, Race
from servesim.experiments.recommend.recommend import recommend
from servesim.experiments.recommend.search import Search
from servesim.experiments.recommend.space import Choices, Point, Space, measured

WORKLOADS: dict[str, dict[str, Any]] = {
    "chat": {"trace": "preset:azure-conv-2023", "slo": "ttft:p99<1s,tpot:p99<50ms"},
    "code": {"trace": "preset:azure-code-2023", "slo": "ttft:p99<2s,tpot:p99<40ms"},
    "agents": {
        "trace": "synth:prompt=lognormal(5000,9000),output=lognormal(200,600)",
        "shape": ["share:tokens=3500,groups=20"],
        "slo": "ttft:p99<2s,tpot:p99<40ms",
    },
    "long": {
        "trace": "synth:prompt=lognormal(12000,40000),output=lognormal(300,900)",
        "slo": "ttft:p99<10s,tpot:p99<60ms",
    },
    "batch": {"trace": "synth:prompt=lognormal(700,2000),output=lognormal(500,1500)", "slo": "e2el:p99<300s"},
}
MODELS = ("llama-3.1-8b", "qwen3-32b")
OWN: dict[str, dict[str, Any]] = {
    "long/qwen3-32b": {"trace": "synth:prompt=lognormal(8000,20000),output=lognormal(300,900)"}
}
"""Changes of a workload for a model: Qwen3 takes 40,960 tokens, which 5 % of the requests of `long` exceed."""
LONG = 20_000
"""Length of the second judgment: ten times the shortest full run, and the longest that a search makes."""
MARGIN = 0.005
"""Share by which a drawn deployment must be cheaper to be measured."""
BATCH = 16
MEASURED = 5
"""Number of drawn deployments that are measured whatever they cost, for the CPU time of one."""


def cpu_s() -> float:
    """Return the CPU seconds of this process and its ended children."""
    return sum(
        used.ru_utime + used.ru_stime
        for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def cell(name: str, out: Path, points: int, seed: int) -> dict[str, Any]:
    """Return the results of one workload and model."""
    workload, _, model = name.partition("/")
    settings = {**WORKLOADS[workload], **OWN.get(name, {}), "model": model}
    folder = out / name.replace("/", "-")
    kept = folder / f"result-{points}-{seed}.json"
    if kept.is_file():
        earlier: dict[str, Any] = json.loads(kept.read_text())
        return earlier
    folder.mkdir(parents=True, exist_ok=True)
    begun, before = time.monotonic(), cpu_s()
    document = recommend(settings, intervals=False, out=folder / "search", search_seed=seed).attrs["document"]
    found: dict[str, Any] = {"cell": name, "search_cpu_s": cpu_s() - before, "search_wall_s": time.monotonic() - begun}
    first = document["recommendation"]["first"]
    row = next(row for row in document["rows"] if row["label"] == first)
    chosen = {key: row[key] for key in ("label", "axes", "rate", "rate_low", "rate_high", "usd_per_hour")}
    found |= {"first": chosen, "runner_up": document["recommendation"]["runner_up"]}
    found |= compared(settings, row, folder, points, seed)
    kept.write_text(json.dumps(found, indent=1, default=str))
    return found


def drawn_value(choices: Choices, draw: random.Random) -> Any:
    """Return a value drawn uniformly, or from the whole range on a logarithmic scale."""
    if not isinstance(choices, Span):
        return draw.choice(choices)
    return round(math.exp(draw.uniform(math.log(choices.low), math.log(choices.high))))


def drawn_point(space: Space, draw: random.Random) -> Point:
    """Return a deployment drawn from the whole space, not only from its grid. It may not run."""
    point = {key: drawn_value(choices, draw) for key, choices in space.axes.items()}
    try:
        flags = {**space.features(point), **space.flags(point)}
    except UserError:
        return point
    return point | {key: drawn_value(choices, draw) for key, choices in flags.items()}


def compared(
    settings: Mapping[str, Any],
    row: Mapping[str, Any],
    folder: Path,
    points: int,
    seed: int,
) -> dict[str, Any]:
    """Compare the winner with deployments drawn at random."""
    terms, objects = Terms(out=folder / "points", overwrite=True), Objects()
    question = Question.of(dict(settings), {}, terms, objects, None, None, False)
    with opened(terms, objects, question.space.base) as runner:
        search = Search(question, runner, random.Random(seed))
        draw, drawn = random.Random(seed + 1), list[Entrant]()
        work, limit = Work.of(question.trace), tpot_limit(question.goals)
        while len(drawn) < points:
            point = drawn_point(question.space, draw)
            setup = question.space.set_up(point)
            if not isinstance(setup, str) and measured(setup):
                v = question.space.variant(point)
                drawn.append(Entrant(point, v, question.aim.bound(v, optimistic_rate(setup, work, limit))))
        race = search.race(question.climb, question.aim)
        winner = Entrant(dict(row["axes"]), question.space.variant(dict(row["axes"])))
        race.measure([(winner, row["rate"])], 0.005)
        price = race.prices[winner.variant.label]
        better = list[tuple[Entrant, float]]()
        for i in range(0, len(drawn), BATCH):
            better += race.beat(drawn[i : i + BATCH], price * (1 - MARGIN))
        race.measure(better, 0.005)
        best = min((e for e, _ in better), key=lambda e: race.prices[e.variant.label], default=None)
        found = {
            "points": len(drawn),
            "winner_price": price,
            "better": [[e.variant.label, race.prices[e.variant.label] / price] for e, _ in better],
            "best_ratio": race.prices[best.variant.label] / price if best is not None else None,
            "longer": longer(search, race, [e for e in (winner, best) if e is not None], row),
        }
    return found | {"point_cpu_s": point_cpu_s(question, drawn[:MEASURED], folder, seed)}


def point_cpu_s(question: Question, entrants: Sequence[Entrant], folder: Path, seed: int) -> float:
    """Return the mean CPU seconds in which the price of a drawn deployment is measured to 1 %, without a search."""
    terms = Terms(out=folder / "cost", overwrite=True, jobs=1)
    with opened(terms, Objects(), question.space.base) as runner:
        race = Search(question, runner, random.Random(seed)).race(question.climb, question.aim)
        before = cpu_s()
        for e in entrants:
            likely = race.aim.load(e.variant, 2 * e.bound) if e.bound else 10.0
            race.measure([(e, likely or 1.0)], 0.01)
        return (cpu_s() - before) / len(entrants)


def longer(search: Search, race: Race, entrants: Sequence[Entrant], row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Judge deployments at ten times the shortest length with another seed."""
    again = search.race(Length(LONG), race.aim)  # more than a lap of a preset
    more = list(entrants)
    loads = [race.aim.load(e.variant, race.prices[e.variant.label]) or 1.0 for e in more]
    seeds = tuple({"seed": change["seed"] + 1000} for change in again.study.measuring.repeats.changes)
    repeats = replace(again.study.measuring.repeats, changes=seeds)
    again.study.measuring = replace(again.study.measuring, repeats=repeats)
    again.study._repeats = repeats
    again.measure([*zip(more, loads, strict=True)], 0.01)
    again.carried([(more[0], row["rate"]), (more[0], row["rate_low"])])
    at = {
        key: [*again.study.judged[more[0].variant.label, row[key]].shares]
        for key in ("rate", "rate_low")
        if (more[0].variant.label, row[key]) in again.study.judged
    }
    prices = [again.prices[e.variant.label] for e in more]
    return [{"label": e.variant.label, "price": price, "shares": at} for e, price in zip(more, prices, strict=True)]


def main() -> None:
    """Run the cells and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cells", default=",".join(f"{w}/{m}" for w in WORKLOADS for m in MODELS))
    parser.add_argument("--points", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in given.cells.split(","):
        print(json.dumps(cell(name, given.out, given.points, given.seed), default=str), flush=True)


if __name__ == "__main__":
    main()
