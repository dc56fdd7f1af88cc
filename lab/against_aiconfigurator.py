"""Choices by servesim and by AIConfigurator among the same measured cells, scored by what the chosen cells gave.

A group holds the measured cells of one model, weight format and pair of lengths on one GPU, of one engine or (if there
are several) of all. Given a limit of TPOT, each tool chooses the cell with the highest predicted output per GPU whose
predicted TPOT is within the limit. Only cells that both tools answer are in a group (AIConfigurator's answers that warn
of too little KV memory only with `--doubtful`), and only limits count that some of its cells keep and others break
(`--loose`: all limits that some keep).

    servesim accuracy cells.csv --only mode=agg --out DIR
    python -m servesim_lab.against_aiconfigurator ask cells.csv questions.csv
    python lab/ask_aiconfigurator.py questions.csv answers.csv          # where aiconfigurator is installed
    python -m servesim_lab.against_aiconfigurator score cells.csv DIR answers.csv

Both tools are given the mean lengths, parallelism and format of keys that recipes know. Intervals resample GPU x model.
"""

from __future__ import annotations

import csv
import json
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from servesim.errors import UserError
from servesim.experiments.accuracy.cells import Cell
from servesim.experiments.accuracy.files import load
from servesim.experiments.accuracy.reading import read
from servesim.experiments.accuracy.recipes import output_mean, recipe, source_of
from servesim.experiments.accuracy.scores import estimate, mean, numbered, resampled

LIMITS_MS = (20.0, 30.0, 50.0, 80.0, 100.0)
SLACK = 0.1
"""Relative overrun of the limit from which a choice counts as broken."""
NEAR = 0.9
"""Share of the best output from which a choice counts as near."""
FEWEST = 3
"""Minimum number of cells in a group."""
TOOLS = ("servesim", "aiconfigurator")
FITTED: tuple[tuple[str, str, str, str], ...] = (
    ("vllm", "h100", "Qwen/Qwen3-32B", ""),  # time of a step and of a sequence of vLLM 0.12
    ("vllm", "", "MiniMaxAI/MiniMax-M2.5", ""),  # exponent of its router's skew
    ("vllm", "b200", "meta-llama/Llama-3.1-70B", "fp8"),  # time of the norm beside an all-reduce
    ("sglang", "h", "", ""),  # host terms of 0.5, its time per request on all cells on Hopper
    ("trtllm", "h", "", ""),  # host terms of 1.0 and 1.1
    ("trtllm", "b200", "", ""),  # time from client to queue of 1.1
)
"""Engine, start of the GPU, model and format (empty: any) of cells that a number was fitted to. The provenance of host
terms and docs/accuracy-notes.md name them. Settings of all given cells were chosen with the cells in view."""


@dataclass(frozen=True)
class Candidate:
    """One measured cell with the predictions of both tools. Outputs are tokens/s per GPU; times are ms."""

    group: tuple[object, ...]
    cluster: tuple[str, str]
    tpot_ms: float
    output: float
    predicted: Mapping[str, tuple[float, float]]
    """TPOT and output by tool."""
    fitted: bool = False


@dataclass(frozen=True)
class Score:
    """One choice of one tool: share of the best output, 0 if the limit is broken or nothing was chosen."""

    share: float
    lenient: float
    """The same share if a broken limit is forgiven."""
    broken: float
    declined: bool

    @property
    def near(self) -> float:
        """1 if the share is at least `NEAR`."""
        return float(self.share >= NEAR)

    @property
    def near_or_broken(self) -> float:
        """The same if a broken limit is forgiven."""
        return float(self.lenient >= NEAR)


def chosen(cells: Sequence[Candidate], tool: str, limit_ms: float) -> list[Candidate]:
    """Return the cells with the highest predicted output within the limit: several if predictions are equal."""
    kept = [one for one in cells if one.predicted[tool][0] <= limit_ms]
    most = max((one.predicted[tool][1] for one in kept), default=0.0)
    return [one for one in kept if one.predicted[tool][1] >= most * (1 - 1e-9)]


def scored(cells: Sequence[Candidate], tool: str, limit_ms: float) -> Score:
    """Score a tool's choice; equally good predictions count as their mean."""
    best = max(one.output for one in cells if one.tpot_ms <= limit_ms)
    taken = chosen(cells, tool, limit_ms)
    if not taken:
        return Score(0.0, 0.0, 0.0, True)
    broken = [one.tpot_ms > limit_ms * (1 + SLACK) for one in taken]
    shares = [min(one.output / best, 1.0) for one in taken]
    kept = [0.0 if late else share for late, share in zip(broken, shares, strict=True)]
    return Score(float(np.mean(kept)), float(np.mean(shares)), float(np.mean(broken)), declined=False)


def questions(cells: Sequence[Candidate], loose: bool = False) -> Iterator[tuple[list[Candidate], float]]:
    """Yield each group with each limit that some of its cells keep and, unless `loose`, others break."""
    groups: dict[object, list[Candidate]] = {}
    for one in cells:
        groups.setdefault(one.group, []).append(one)
    for group in groups.values():
        for limit in LIMITS_MS if len(group) >= FEWEST else ():
            kept = sum(one.tpot_ms <= limit for one in group)
            if kept and (loose or kept < len(group)):
                yield group, limit


def compared(asked: Sequence[tuple[list[Candidate], float]], seed: int = 0) -> dict[str, Any]:
    """Return the mean scores of both tools and their difference, with intervals."""
    if not asked:
        return {"choices": 0}
    clusters = numbered([group[0].cluster for group, _ in asked])
    times = resampled(clusters, seed, "choices against AIConfigurator")
    if not clusters.max():
        times = times[:1]
    scores = {tool: [scored(group, tool, limit) for group, limit in asked] for tool in TOOLS}

    def told(values: Sequence[float]) -> dict[str, float | None]:
        return estimate(mean(np.array(values, dtype=np.float64), times))

    document: dict[str, Any] = {
        "choices": len(asked),
        "groups": len({id(group) for group, _ in asked}),
        "clusters": int(clusters.max()) + 1,
        "declined": {tool: sum(one.declined for one in scores[tool]) for tool in TOOLS},
    }
    for name in ("near", "share", "near_or_broken", "lenient", "broken"):
        ours, theirs = ([getattr(one, name) for one in scores[tool]] for tool in TOOLS)
        both = {TOOLS[0]: told(ours), TOOLS[1]: told(theirs)}
        document[name] = both | {"difference": told([a - b for a, b in zip(ours, theirs, strict=True)])}
    return document


def is_fitted(cell: Cell) -> bool:
    """Whether a number of servesim was fitted to this cell or to others of the same kind."""
    return any(
        cell.engine == engine
        and cell.gpu.startswith(gpu)
        and (not model or cell.model == model)
        and (not precision or cell.precision == precision)
        for engine, gpu, model, precision in FITTED
    )


def candidates(
    cells: Sequence[Cell], simulated: Mapping[str, tuple[float, float]], answers: Mapping[str, tuple[float, float]]
) -> list[tuple[Cell, Candidate]]:
    """Return the cells that both tools answer. `simulated` holds TPOT and TTFT by id, `answers` TPOT and output."""
    both = [(cell, *simulated[cell.id]) for cell in cells if cell.id in simulated and cell.id in answers]
    return [
        (cell, candidate(cell, {TOOLS[0]: (tpot, rate(cell, ttft, tpot)), TOOLS[1]: answers[cell.id]}))
        for cell, tpot, ttft in both
    ]


def candidate(cell: Cell, predicted: Mapping[str, tuple[float, float]]) -> Candidate:
    """Return the candidate of a cell, in the group of its engine."""
    model = recipe(cell).settings["model"]
    group = (cell.engine, cell.gpu, model, cell.precision, cell.isl, cell.osl)
    output = rate(cell, cell.ttft_ms, cell.tpot_ms)
    return Candidate(group, (cell.gpu, str(model)), cell.tpot_ms, output, predicted, is_fitted(cell))


def rate(cell: Cell, ttft_ms: float, tpot_ms: float) -> float:
    """Return the output tokens/s per GPU of a closed loop with these times."""
    length = output_mean(cell)
    return 1e3 * cell.concurrency * length / (ttft_ms + (length - 1) * tpot_ms) / cell.gpus


def of_all_engines(cells: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates in groups of all engines, if there are several."""
    engines: dict[object, set[object]] = {}
    for one in cells:
        engines.setdefault(one.group[1:], set()).add(one.group[0])
    return [
        Candidate(("all", *one.group[1:]), one.cluster, one.tpot_ms, one.output, one.predicted, one.fitted)
        for one in cells
        if len(engines[one.group[1:]]) > 1
    ]


def ask(given: Namespace) -> None:
    """Write the questions: a line per aggregated cell."""
    rows = []
    for cell in read([given.cells]):
        if cell.mode != "agg":
            continue
        source = source_of(cell)
        try:
            settings = recipe(cell).settings
        except UserError:
            settings = {}
        ranks = max(cell.dp, 1)
        width = cell.tp * ranks
        whole = settings.get("engine", {}).get("enable_expert_parallel")
        ep, budget = width if whole else min(max(cell.ep, 1), width), settings.get("scheduler", {})
        rows.append(
            {name: getattr(cell, name) for name in ("id", "engine", "model", "gpu", "precision", "tp")}
            | {"dp": ranks, "moe_tp": width // ep, "ep": ep, "batch": max(round(cell.concurrency / ranks), 1)}
            | {"isl": round(cell.isl * sum(source["prompt"]) / 2), "osl": round(output_mean(cell))}
            | {"kv": settings.get("kv_dtype", "")}
            | {"budget": budget.get("max_num_batched_tokens") or budget.get("max_num_tokens") or 8192}
        )
    with given.questions.open("w", newline="") as file:
        out = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        out.writeheader()
        out.writerows(rows)


def score(given: Namespace) -> None:
    """Print the document of both tools' scores as JSON."""
    rows, _ = load(given.scored)
    simulated = {
        row["id"]: (float(row["tpot_simulated_ms"]), float(row["ttft_simulated_ms"]))
        for row in rows
        if row["tpot_simulated_ms"] and not row["screened"]
    }
    cells = [cell for cell in read([given.cells]) if cell.mode == "agg"]
    of = {cell.id: cell for cell in cells}
    answers: dict[str, tuple[float, float]] = {}
    reasons: Counter[str] = Counter()
    with given.answers.open(newline="") as file:
        for row in csv.DictReader(file):
            if not row["tpot_ms"]:
                cell = of[row["id"]]
                reasons[f"{cell.engine} {cell.gpu} {cell.model} {cell.precision}: {row['reason'][:160]}"] += 1
            elif given.doubtful or not row["doubt"]:
                tpot, output = float(row["tpot_ms"]), float(row["output_per_gpu"])
                if given.closed_loop:
                    output = rate(of[row["id"]], float(row["ttft_ms"]), tpot)
                answers[row["id"]] = tpot, output
    both = candidates(cells, simulated, answers)
    engines = [one for _, one in both]
    document: dict[str, Any] = {
        "cells": {"given": len(cells), "servesim": len(simulated), "aiconfigurator": len(answers), "both": len(both)},
        "errors of TPOT": {
            tool: float(np.mean([abs(one.predicted[tool][0] / one.tpot_ms - 1) for one in engines])) for tool in TOOLS
        },
        "not answered by aiconfigurator": dict(reasons.most_common()),
    }
    for name, found in (("one engine", engines), ("all engines", of_all_engines(engines))):
        asked = list(questions(found, given.loose))
        fitted = [any(one.fitted for one in group) for group, _ in asked]
        document[name] = {
            "all": compared(asked),
            "fitted": compared([one for one, yes in zip(asked, fitted, strict=True) if yes]),
            "not fitted": compared([one for one, yes in zip(asked, fitted, strict=True) if not yes]),
        }
    json.dump(document, sys.stdout, indent=1)
    print()
    if given.choices:
        given.choices.write_text(
            "".join(
                json.dumps({"group": group[0].group, "limit_ms": limit, "tool": tool, **asdict(one)}) + "\n"
                for group, limit in questions(engines, given.loose)
                for tool in TOOLS
                for one in (scored(group, tool, limit),)
            )
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Ask or score."""
    parse = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    commands = parse.add_subparsers(required=True)
    asking = commands.add_parser("ask")
    asking.add_argument("cells", type=Path)
    asking.add_argument("questions", type=Path)
    asking.set_defaults(run=ask)
    scoring = commands.add_parser("score")
    scoring.add_argument("cells", type=Path)
    scoring.add_argument("scored", type=Path, help="folder of servesim accuracy")
    scoring.add_argument("answers", type=Path)
    scoring.add_argument("--loose", action="store_true")
    scoring.add_argument("--doubtful", action="store_true", help="with answers that warn of too little KV memory")
    scoring.add_argument("--closed-loop", action="store_true", help="output per GPU from the answer's TTFT and TPOT")
    scoring.add_argument("--choices", type=Path, help="JSON lines of the choices among one engine's cells")
    scoring.set_defaults(run=score)
    given = parse.parse_args(arguments)
    given.run(given)


if __name__ == "__main__":
    main()
