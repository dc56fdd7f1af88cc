"""From naive to production: cumulative optimizations, and each one removed from the full set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from servesim.run.simulate import simulate

from . import Bars, Given, Outcome, Row, amount, experiment
from .outcome import COURSE


@dataclass(frozen=True)
class Run:
    """Figures of a configuration."""

    speed: float
    """Output tokens/s."""
    latency: float
    """Mean time per output token of a running request, ms."""
    formula: float
    """Share of the GPU time that is not in any measured table, in percent."""


@experiment(
    "naive-to-production",
    group="time",
    claim="bf16 2 x, KV cache 10 x, FlashAttention 3 x, int8 1.5 x, speculation 2.5 x, batching and paging 4 x: 900 x "
    "on paper, 30 to 100 x in practice",
    source=COURSE,
)
def naive_to_production(given: Given) -> Outcome:
    """Switch each optimization on in addition to the previous ones, then switch each off alone, for every workload."""
    outcome = Outcome()
    stacks, without = {}, {}
    for workload, trace in given["workloads"].items():
        settings: dict[str, Any] = {**given["base"], **given["naive"], "trace": trace}
        stack = stacks[workload] = {"naive": _run(settings)}
        for step in given["steps"]:
            settings |= step["set"]
            stack[step["name"]] = _run(settings)
        without[workload] = {name: _run({**settings, **change}) for name, change in given["without"].items()}
        _steps(outcome, given["steps"], workload, stack)
        _together(outcome, given, workload, stack)
        whole = list(stack.values())[-1].speed
        for name, run in without[workload].items():
            gain = amount(whole / run.speed)
            note = f"{amount(run.speed)} without it, {amount(whole, 'tokens/s')} with all"
            outcome.add(Row(f"{name}, where all others are on, {workload}", "-", f"{gain} x", "shown", note))
    _draw(outcome, "waterfall", "Output tokens/s, each step over those before", stacks, "+ ")
    _draw(outcome, "without", "Output tokens/s, all but one", without, "without ")
    return outcome


def _steps(outcome: Outcome, steps: Sequence[Given], workload: str, stack: Mapping[str, Run]) -> None:
    for before, step in zip(stack.values(), steps, strict=False):
        after = stack[step["name"]]
        note = (
            f"{amount(before.speed)} to {amount(after.speed, 'tokens/s')}, {amount(before.latency)} to "
            f"{amount(after.latency, 'ms')} per token; {after.formula:.0f} % of the GPU time by formula"
        )
        what, gain = f"+ {step['name']}, {workload}", after.speed / before.speed
        share, cause = max(before.formula, after.formula) / 100, CAUSES.get(step["name"], "")
        outcome.near(what, step["claim"], gain, "x", within=0.25, formula=share, note=note, cause=cause)


def _together(outcome: Outcome, given: Given, workload: str, stack: Mapping[str, Run]) -> None:
    """Add the product of the factors, and the product from the first 16-bit stage on."""
    naive, half, *_, last = (run.speed for run in stack.values())
    ends = list(stack.values())
    paper = prod(step["claim"] for step in given["steps"])
    outcome.near(
        f"all of them in practice, {workload}",
        given["practice"],
        last / naive,
        "x",
        formula=max(ends[0].formula, ends[-1].formula) / 100,
        note=f"{amount(paper)} x on paper; from {given['steps'][0]['name']} on {amount(last / half)} x",
        cause="factors measured one by one, each where it helps most, do not multiply",
    )


CAUSES = {
    "bf16": "recomputing prompts is bound by arithmetic, and tensor cores compute 16 bits 16 times as fast as CUDA "
    "cores compute 32 (8 times as TF32); a decode step alone would gain the 2 x of its bytes",
    "KV cache": "what a cache saves grows with the prompt: a step over some hundred tokens takes few times longer than "
    "one over one token, since both read the weights, and one over some thousand much longer",
    "FlashAttention": "attention is a small part of short prompts, and of decode steps, where most of the time goes",
    "int8": "attention, LM head and small kernels stay as they are",
    "speculation": "4 drafts at an acceptance of 0.8 give 3.36 tokens a step, and each draft of this model in 16 bits "
    "takes a quarter of an int8 step of the target",
    "batching and paging": "a decode step for one request reads the same weights as one for a hundred, until their KV "
    "outweighs them",
}
"""Reasons why a step may give a different factor than the text."""


def _run(settings: Mapping[str, Any]) -> Run:
    summary = simulate(settings).summary
    return Run(
        speed=float(summary["throughput"]["output_throughput"]),
        latency=float(summary["latency_ms"]["tpot"]["mean"]),
        formula=100 * float(summary["cost_shares"]["roofline"]),
    )


def _draw(outcome: Outcome, name: str, title: str, found: Mapping[str, Mapping[str, Run]], prefix: str) -> None:
    labels = {key: key if key == "naive" else prefix + key for key in next(iter(found.values()))}
    told = []
    for workload, runs in found.items():
        told.append(f"{workload}: " + ", ".join(f"{labels[key]} {amount(run.speed)}" for key, run in runs.items()))
    outcome.figures.append(
        Bars(
            name=name,
            title=title,
            alt="; ".join(told) + ".",
            x_label="output tokens/s",
            rows={label: [runs[key].speed for runs in found.values()] for key, label in labels.items()},
            series=list(found),
            log=True,
        )
    )
