"""Slowest requests, and the cause of each."""

from __future__ import annotations

import numpy as np

from servesim.reports.page import Table
from servesim.reports.run import Run
from servesim.reports.words import percent, seconds, time_ms

SHOWN = 6


def slowest(run: Run) -> list[Table]:
    """Return the longest waits for a first token, and the slowest outputs."""
    tables = []
    for title, column in (("Longest waits for a first token", "ttft_ns"), ("Slowest output tokens", "tpot_ns")):
        values = run.requests[column].astype(np.float64)
        rows = np.flatnonzero(run.done & np.isfinite(values))
        worst = rows[np.argsort(-values[rows], kind="stable")][:SHOWN]
        if len(worst):
            tables.append(_table(run, title, worst, column))
    return tables


def _table(run: Run, title: str, rows: np.ndarray[tuple[int], np.dtype[np.int64]], column: str) -> Table:
    r = run.requests
    columns = ("request", "arrives at", "prompt", "output", "queue", "TTFT", "TPOT", "E2E", "mainly")
    cells = []
    for i in rows.tolist():
        tpot = float(r["tpot_ns"][i])
        cells.append(
            (
                run.names[i] if run.names else f"{r['row'][i]:,}",
                seconds((int(r["arrival_ns"][i]) - run.begin_ns) / 1e9),
                f"{r['prompt_len'][i]:,}",
                f"{r['output_len'][i]:,}",
                time_ms(float(r["queue_time_ns"][i]) / 1e6),
                time_ms(float(r["ttft_ns"][i]) / 1e6),
                time_ms(tpot / 1e6) if np.isfinite(tpot) else "–",
                time_ms(float(r["e2el_ns"][i]) / 1e6),
                first_token_cause(run, i) if column == "ttft_ns" else output_cause(run, i),
            )
        )
    return Table(title, columns, cells, (False, *[True] * 7, False))


def first_token_cause(run: Run, i: int) -> str:
    """Return the cause that contributed most to a request's time to first token."""
    r = run.requests
    ttft, queue = float(r["ttft_ns"][i]), float(r["queue_time_ns"][i])
    if queue > ttft / 2:
        return f"queueing, {percent(queue / ttft)}"
    if r["num_preemptions"][i]:
        return "preemption"
    return f"computing the prompt, {percent(1 - queue / ttft)}"


def output_cause(run: Run, i: int) -> str:
    """Return the cause that slowed a request's output."""
    r = run.requests
    times = int(r["num_preemptions"][i])
    if times:
        return f"preempted {times} ×, {r['recomputed_tokens'][i]:,} tokens recomputed"
    steps = run.steps
    inside = (steps["replica"] == r["replica"][i]) & (steps["start_ns"] >= r["first_token_ns"][i])
    inside &= steps["end_ns"] <= r["last_token_ns"][i]
    beside = float(steps["elapsed_ns"][inside & (steps["prefill_pieces"] > 0)].sum())
    whole = float(r["last_token_ns"][i] - r["first_token_ns"][i])
    share = beside / whole if whole else 0.0
    if share > 0.3:
        return f"other requests' prompts in its steps, {percent(share)}"
    batch = float(steps["decode_count"][inside].mean()) if inside.any() else 1.0
    return f"batches of {batch:,.0f} sequences"
