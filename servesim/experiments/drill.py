"""Row-by-row comparison of two result directories for one workload: the first decision that differs, and the requests
that got worse."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from servesim.experiments.run_metrics import Run
from servesim.metrics.requests import MS, SECOND
from servesim.run.result_files import STEPS, reading

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]

WORSE = 0.05
"""Relative increase in end-to-end latency above which a request counts as worse."""
WORST = 10
DECISION = [
    *("prefill_tokens", "prefill_pieces", "prefill_context", "decode_count"),
    *("decode_context", "padded_tokens", "drafts", "preempted"),
]
"""Columns of the step table that describe what a step computes."""


def drill_down(base: Path, other: Path) -> dict[str, Any]:
    """Return the number of requests that got worse under `other`, by cause, the worst of these requests, and the first
    decision that differs."""
    a, b = Run.load(base), Run.load(other)
    steps_a, steps_b = _steps(base), _steps(other)
    return {
        **_worse(a, b, _interference(b, steps_b) - _interference(a, steps_a)),
        "divergence": _divergence(a, b, steps_a, steps_b),
    }


def _steps(folder: Path) -> pd.DataFrame:
    import pyarrow.parquet as pq

    names = ["replica", "step", "k", "planned_ns", "start_ns", "end_ns", "elapsed_ns", *DECISION]
    with reading(folder / STEPS):
        steps: pd.DataFrame = pq.read_table(folder / STEPS, columns=names).to_pandas()
        return steps


def _parts(run: Run) -> dict[str, Array]:
    """Return the durations in ns of the three phases of the life of each request that completed."""
    times = [run.columns[f"{name}_ns"] for name in ("arrival", "scheduled", "first_token", "last_token")]
    return dict(zip(("queue", "prefill", "decode"), np.diff(times, axis=0), strict=True))


def _interference(run: Run, steps: pd.DataFrame) -> Array:
    """Return, for each request, how many ns of its decoding were spent in steps that also computed prompts."""
    terms = run.summary["provenance"]["host_terms"] or {}
    out = float(terms.get("front_out", 0.0))  # clients see tokens this much later
    spent = np.zeros(len(run.done))
    for replica, mine in steps.groupby("replica"):
        total = np.cumsum(np.where(mine["prefill_tokens"] > 0, mine["elapsed_ns"], 0))
        here = run.done & (run.columns["replica"] == replica)
        first, last = (run.columns[f"{name}_token_ns"][here] - out for name in ("first", "last"))
        spent[here] = np.interp(last, mine["end_ns"], total) - np.interp(first, mine["end_ns"], total)
    return spent


def _worse(a: Run, b: Run, prompts: Array) -> dict[str, Any]:
    before, after = a.latency_ms("e2el"), b.latency_ms("e2el")
    both = a.done & b.done
    growth = np.full(len(both), -np.inf)
    growth[both] = after[both] / before[both] - 1
    worse = np.flatnonzero(growth > WORSE)
    parts_a, parts_b = _parts(a), _parts(b)
    delta = {name: parts_b[name] - parts_a[name] for name in parts_a}
    causes = {row: _cause(row, a, b, delta, prompts) for row in worse.tolist()}
    worst = sorted(worse.tolist(), key=lambda row: (before[row] - after[row], row))[:WORST]
    return {
        "compared": int(both.sum()),
        "worse": len(worse),
        "better": int((growth[both] < -WORSE).sum()),
        "not_completed": int((a.done & ~b.done).sum()),
        "causes": dict(sorted(Counter(causes.values()).items(), key=lambda item: (-item[1], item[0]))),
        "worst": [
            {
                "row": row,
                "prompt_len": int(a.columns["prompt_len"][row]),
                "output_len": int(a.columns["output_len"][row]),
                "e2el_ms": [float(before[row]), float(after[row])],
                "more_ms": {name: float(change[row] / MS) for name, change in delta.items()},
                "cause": causes[row],
            }
            for row in worst
        ],
    }


def _cause(row: int, a: Run, b: Run, delta: dict[str, Array], prompts: Array) -> str:
    """Return the cause: preemption, or one based on the phase that grew most."""
    if b.columns["num_preemptions"][row] > a.columns["num_preemptions"][row]:
        return "preemption"
    most = max(delta, key=lambda name: float(delta[name][row]))
    if most == "queue":
        return "queueing"
    if most == "prefill":
        lost = b.columns["hit_tokens"][row] < a.columns["hit_tokens"][row]
        return "lost prefix hits" if lost else "slower prefill"
    return "prefill interference" if prompts[row] > delta["decode"][row] / 2 else "slower decode steps"


def _divergence(a: Run, b: Run, steps_a: pd.DataFrame, steps_b: pd.DataFrame) -> dict[str, Any] | None:
    """Return the first step, by time, that computes something different, or None if all steps are equal."""
    found = []
    for replica in sorted({*steps_a["replica"].tolist(), *steps_b["replica"].tolist()}):
        first, second = (_expanded(steps[steps["replica"] == replica]) for steps in (steps_a, steps_b))
        n = min(len(first), len(second))
        differs = (first[DECISION][:n] != second[DECISION][:n]).any(axis=1).to_numpy()
        at = int(np.argmax(differs)) if differs.any() else n
        if at < max(len(first), len(second)):
            sides = [_decision(run, steps, at) for run, steps in ((a, first), (b, second))]
            when = min(side["time_s"] for side in sides if side is not None)
            found.append({"replica": replica, "step": at, "time_s": when, "baseline": sides[0], "variant": sides[1]})
    return min(found, key=lambda d: (d["time_s"], d["replica"]), default=None)


def _expanded(steps: pd.DataFrame) -> pd.DataFrame:
    """Return the decisions of one replica, one row per step: rows of k equal steps are expanded."""
    each = steps.loc[steps.index.repeat(steps["k"])]
    offset = each.groupby(level=0).cumcount()
    each["decode_context"] += offset * each["decode_count"]
    each["planned_ns"] += (each["end_ns"] - each["start_ns"]) * offset // each["k"]
    return each.reset_index(drop=True)


def _decision(run: Run, steps: pd.DataFrame, at: int) -> dict[str, Any] | None:
    """Return what step `at` under a policy computes and which requests it admits, or None if there is no such step."""
    if at >= len(steps):
        return None
    step = steps.iloc[at]
    return {
        "time_s": int(step["planned_ns"]) / SECOND,
        **{name: int(step[name]) for name in DECISION},
        "first_scheduled": np.flatnonzero(run.columns["scheduled_ns"] == step["planned_ns"]).tolist(),
    }


def divergence_text(found: dict[str, Any] | None, baseline: str, variant: str) -> str:
    """Describe, in one sentence, the first decision that differs."""
    if found is None:
        return f"{variant} and {baseline} make the same decisions throughout"
    sides = [f"{name} {_does(found[key])}" for name, key in ((baseline, "baseline"), (variant, "variant"))]
    return f"at {found['time_s']:.3f} s (step {found['step']} of replica {found['replica']}) {'; '.join(sides)}"


def _does(side: dict[str, Any] | None) -> str:
    if side is None:
        return "has nothing left to do"
    does = []
    if side["prefill_pieces"]:
        does.append(f"computes {side['prefill_tokens']:,} tokens of {_several(side['prefill_pieces'], 'prompt')}")
    if side["decode_count"]:
        context = f"{side['decode_context']:,} tokens of context"
        does.append(f"decodes {_several(side['decode_count'], 'request')} with {context}")
    if side["drafts"]:
        does.append(f"verifies {_several(side['drafts'], 'draft token')}")
    if side["padded_tokens"]:
        does.append(f"pads {side['padded_tokens']} tokens")
    if side["preempted"]:
        does.append(f"preempts {_several(side['preempted'], 'request')}")
    return " and ".join(does) or "does nothing"


def _several(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
