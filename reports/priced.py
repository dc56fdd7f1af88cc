"""Recorded steps of a run, repriced operator by operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from servesim.contracts.cost import Batch
from servesim.cost.breakdown import breakdown
from servesim.cost.work import step_work
from servesim.hardware import ModelSpec
from servesim.run.setup import cost_model_of

if TYPE_CHECKING:
    from servesim.reports.run import Column, Run

SAMPLE = 300
"""Number of step rows priced for each kind of step."""

FAMILIES = (
    ("attention", "blue", "attention", ("attention_prefill", "attention_decode")),
    ("projections", "sky", "attention projections", ("qkv", "attention_out", "latent", "rotary", "kv_write")),
    ("mlp", "violet", "MLP and experts", ("up", "down", "activation", "shared_", "router", "experts")),
    ("head", "teal", "LM head and sampler", ("lm_head", "sampler", "embedding")),
    ("drafting", "lime", "drafting", ("drafting",)),
    ("network", "amber", "communication", ("all_reduce", "all_gather", "send", "all_to_all", "copy")),
    ("clock", "muted", "lowered clock", ("lower_clock",)),
    ("other", "slate", "norms and the rest", ()),
    ("host", "rose", "host time the GPU waits for", ("host",)),
)
"""Operator families: key, color, displayed name, prefixes of operator names."""


@dataclass(frozen=True)
class Priced:
    """Sampled steps, repriced."""

    ns: dict[str, dict[str, float]]
    """Estimated nanoseconds of all steps by kind of step and operator; exposed host time counts as `host`."""
    recorded: float
    """Ratio of the total operator time to the sample's recorded GPU time."""
    points: list[tuple[str, float, float]]
    """Tuples (kind, FLOP/byte, FLOP/s per GPU) of sampled steps."""

    @property
    def kinds(self) -> list[str]:
        """Kinds of steps that the run had."""
        return [kind for kind, parts in self.ns.items() if parts]

    def families(self, kind: str) -> dict[str, float]:
        """Return nanoseconds by family."""
        found = dict.fromkeys((key for key, *_ in FAMILIES), 0.0)
        for name, ns in self.ns[kind].items():
            found[family(name)] += ns
        return found

    def operators(self) -> dict[str, float]:
        """Return nanoseconds of each operator over all steps, longest first."""
        total: dict[str, float] = {}
        for parts in self.ns.values():
            for name, ns in parts.items():
                total[name] = total.get(name, 0.0) + ns
        return dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))


def family(name: str) -> str:
    """Return the family of an operator."""
    for key, _, _, beginnings in FAMILIES:
        if name.startswith(beginnings):
            return key
    return "other"


def price_steps(run: Run) -> Priced:
    """Price a sample of the recorded steps. The records keep only sums, so the prompt chunks within a step are assumed
    to be equally long. Raise UserError if the model's file no longer exists."""
    scenario = run.scenario
    model, cost = ModelSpec.load(scenario.model), cost_model_of(scenario)
    ns: dict[str, dict[str, float]] = {}
    points: list[tuple[str, float, float]] = []
    priced_ns = recorded_ns = 0.0
    for kind, mask in run.kinds.items():
        rows = np.flatnonzero(mask)
        parts = ns[kind] = {}
        if not len(rows):
            continue
        chosen = run.sample(rows, SAMPLE)
        for row in chosen.tolist():
            batch, k = sampled_step(run, row)
            for name, value in breakdown(cost, batch).items():
                parts[name] = parts.get(name, 0.0) + value * k
            gpu_ns = int(run.steps["gpu_ns"][row])
            recorded_ns += gpu_ns
            flops, data = step_work(model, batch, scenario.dtype, scenario.kv_dtype, scenario.tp)
            points.append((kind, flops / data, flops * k / gpu_ns * 1e9 / scenario.tp))
        priced_ns += sum(parts.values())
        scale = float(run.steps["gpu_ns"][rows].sum()) / float(run.steps["gpu_ns"][chosen].sum())
        for name in parts:
            parts[name] *= scale
        shown = run.steps["elapsed_ns"][rows].sum(dtype=np.float64) - run.steps["gpu_ns"][rows].sum(dtype=np.float64)
        if shown > 0 and scenario.pp == 1:
            parts["host"] = float(shown)
    return Priced(ns, priced_ns / recorded_ns if recorded_ns else 1.0, points)


def sampled_step(run: Run, row: int) -> tuple[Batch, int]:
    """Return the step in the middle of a recorded row, and the number of steps in the row."""
    batch, k = batch_of(run.steps, row)
    batch.draft_k = int(run.scenario.speculation.get("k", 0))  # an upper bound; the count is not recorded
    return batch, k


def batch_of(steps: dict[str, Column], row: int, nth: int | None = None) -> tuple[Batch, int]:
    """Return the nth step of a recorded row (by default the middle one), and the number of steps in the row."""
    c = {name: int(column[row]) for name, column in steps.items()}
    pieces, count = c["prefill_pieces"], c["decode_count"]
    prefill = [(_part(c["prefill_tokens"], pieces, i), _part(c["prefill_context"], pieces, i)) for i in range(pieces)]
    queries = count + c["drafts"]
    context = c["decode_context"]
    batch = Batch(
        linear_tokens=c["prefill_tokens"] + queries - c["padded_tokens"],  # chunks and rows are recorded with padding
        prefill=prefill,
        decode_count=count,
        decode_context_sum=context,
        decode_context_sumsq=context * context // count if count else 0,
        decode_context_max=-(-context // count) if count else 0,
        queries_per_sequence=-(-queries // count) if count else 1,
        sampled=c["sampled"],
        padded_tokens=c["padded_tokens"],
        bytes_moved=c["bytes_moved"],
        drafts=c["drafts"],
        sampled_context=context + (c["prefill_tokens"] + c["prefill_context"] if c["sampled"] > count else 0),
    )
    nth = (c["k"] - 1) // 2 if nth is None else nth
    return (batch.advance(nth) if nth else batch), c["k"]


def _part(total: int, parts: int, i: int) -> int:
    """Return the i-th of `parts` nearly equal integer parts."""
    return total * (i + 1) // parts - total * i // parts
