"""Chrome trace events (JSON) for ui.perfetto.dev and chrome://tracing.

Each replica is a process: it has one slice per step, with a separate track for each overlapping step (pipeline stages),
and counters of the batch and of KV memory. Its requests are another process, in which each request is an asynchronous
track of its phases. Times are in microseconds, with nanosecond precision. If the run recorded the requests of its steps
(--step-requests), each slice names them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from servesim.contracts.request import State
from servesim.reports.export import one_run
from servesim.reports.tokens import Steps, Tokens
from servesim.run.result_files import STEP_REQUESTS, reading

MOST_NAMED = 64
"""Maximum number of requests named in a step."""
COUNTS = ("prefill_tokens", "prefill_pieces", "decode_count", "sampled", "drafts", "preempted")


def write(folder: Path, file: TextIO) -> None:
    """Write the trace of a run."""
    result = one_run(folder, "a trace")
    tokens = Tokens(result)
    steps = {str(c): result.steps[c].to_numpy() for c in result.steps}
    file.write('{"displayTimeUnit":"ms","otherData":')
    file.write(json.dumps(_about(result.summary, tokens.steps.exact), sort_keys=True))
    file.write(',"traceEvents":[')
    comma = ""
    of = _step_requests(folder)
    for event in chain(_names(steps), _steps(steps, tokens.steps, of), _counters(steps), _requests(result)):
        file.write(comma + "\n" + json.dumps(event, separators=(",", ":")))
        comma = ","
    file.write("\n]}\n")


def _about(summary: dict[str, Any], exact: bool) -> dict[str, Any]:
    return {
        "made_by": f"servesim {summary['provenance']['versions']['servesim']}",
        "trace": summary["provenance"]["trace"],
        "cost_model": summary["provenance"]["cost_model"],
        "step_times": "exact" if exact else "steps recorded in one row get equal shares of its time",
    }


def _pid(replica: int) -> int:
    return replica + 1_000  # above all track numbers: a track with its process's number would be the main thread


REQUESTS_PID = 1_000_000


def _names(steps: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for replica in np.unique(steps["replica"]).tolist():
        name = {"name": f"replica {replica}"}
        yield {"ph": "M", "pid": _pid(replica), "name": "process_name", "args": name}
    yield {"ph": "M", "pid": REQUESTS_PID, "name": "process_name", "args": {"name": "requests"}}


def _step_requests(folder: Path) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Return (row, tokens) of the requests by replica and step, if the run recorded them."""
    if not (folder / STEP_REQUESTS).is_file():
        return {}
    import pyarrow.parquet as pq

    with reading(folder / STEP_REQUESTS):
        table = pq.read_table(folder / STEP_REQUESTS)
        columns = [table[name].to_pylist() for name in ("replica", "step", "row", "num_scheduled_tokens")]
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for replica, step, row, tokens in zip(*columns, strict=True):
        found.setdefault((replica, step), []).append((row, tokens))
    return found


def _named(requests: list[tuple[int, int]]) -> str:
    """Return the requests of a step as text: rows, with the number of computed tokens if it is not one."""
    shown = [f"{row} preempted" if not n else str(row) if n == 1 else f"{row} ({n} tokens)" for row, n in requests]
    more = [f"and {len(shown) - MOST_NAMED} more"] if len(shown) > MOST_NAMED else []
    return ", ".join([*shown[:MOST_NAMED], *more])


def _steps(
    table: dict[str, Any], steps: Steps, of: dict[tuple[int, int], list[tuple[int, int]]]
) -> Iterator[dict[str, Any]]:
    """Yield one complete event per step, and a name for each track at its first event."""
    free: dict[int, list[int]] = {}
    columns = {name: table[name].tolist() for name in (*COUNTS, "replica", "kv_used", "step", "decode_context")}
    for row, step, begin, end in zip(
        steps.row.tolist(), steps.step.tolist(), steps.begin_ns.tolist(), steps.end_ns.tolist(), strict=True
    ):
        c = {name: column[row] for name, column in columns.items()}
        kind = "decode" if not c["prefill_pieces"] else "mixed" if c["decode_count"] else "prefill"
        nth = step - c["step"]
        arguments = {"step": step, **{name: c[name] for name in COUNTS if c[name]}}
        if c["decode_count"]:
            arguments["decode_context"] = c["decode_context"] + nth * c["decode_count"]
        if requests := of.get((c["replica"], step)):
            arguments["requests"] = _named(requests)
        tracks = free.setdefault(c["replica"], [])
        known = len(tracks)
        track = {"pid": _pid(c["replica"]), "tid": _lane(tracks, begin, end)}
        if len(tracks) > known:
            yield {"ph": "M", **track, "name": "thread_name", "args": {"name": f"steps {len(tracks)}"}}
        yield {
            "ph": "X", "cat": "step", "name": kind, **track, "ts": begin / 1e3, "dur": (end - begin) / 1e3,
            "args": arguments,
        }  # fmt: skip


def _lane(free: list[int], begin: int, end: int) -> int:
    """Return the first track that is free at `begin`, counted from 1."""
    for i, until in enumerate(free):
        if until <= begin:
            free[i] = end
            return i + 1
    free.append(end)
    return len(free)


def _counters(steps: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield counter values, each of which applies from the first step of its row onward. Viewers name a counter by its
    event and argument."""
    for i in range(len(steps["k"])):
        at = {"ph": "C", "pid": _pid(int(steps["replica"][i])), "ts": int(steps["start_ns"][i]) / 1e3}
        sequences = int(steps["decode_count"][i] + steps["prefill_pieces"][i])
        yield {**at, "name": "sequences", "args": {"in a step": sequences}}
        kv = {"used": int(steps["kv_used"][i]), "not filled": int(steps["kv_internal"][i])}
        yield {**at, "name": "KV tokens", "args": kv}


def _requests(result: Any) -> Iterator[dict[str, Any]]:
    """Yield nestable asynchronous events: the request and, inside it, waiting, prompt and output."""
    frame = result.requests
    names = frame["name"].tolist() if "name" in frame else frame["row"].tolist()
    columns = ["row", "state", "arrival_ns", "scheduled_ns", "first_token_ns", "finished_ns"]
    for name, values in zip(names, zip(*(frame[c].tolist() for c in columns), strict=True), strict=True):
        row, state, arrival, scheduled, first, finished = values
        # A plain "id" is shared by all processes, and the track would appear outside the requests' track.
        common = {"cat": "request", "id2": {"local": str(row)}, "pid": REQUESTS_PID, "tid": 1}
        label = f"request {name}" if state == State.FINISHED else f"request {name} ({State(state).name.lower()})"
        marks = [arrival, scheduled, first, finished]
        yield {**common, "ph": "b", "name": label, "ts": arrival / 1e3}
        for phase, begin, end in zip(("waiting", "prompt", "output"), marks[:-1], marks[1:], strict=True):
            if begin >= 0:
                until = end if end >= 0 else finished
                yield {**common, "ph": "b", "name": phase, "ts": begin / 1e3}
                yield {**common, "ph": "e", "name": phase, "ts": until / 1e3}
        yield {**common, "ph": "e", "name": label, "ts": finished / 1e3}
