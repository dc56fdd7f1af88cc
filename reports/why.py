"""History of one request, from its arrival to its last token (`servesim why`)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servesim.contracts.request import State
from servesim.errors import UserError
from servesim.reports.ink import INK
from servesim.reports.run import Run
from servesim.reports.slowest import first_token_cause, output_cause
from servesim.reports.svg import Drawing, wide
from servesim.reports.words import percent, seconds, time_ms
from servesim.run.result import Result
from servesim.run.result_files import STEP_REQUESTS, reading

SLOTS = ("max_num_seqs", "max_running_requests", "max_batch_size")
"""Scheduler parameters that limit the number of running requests."""
FULL = 0.95
"""Share of KV memory in use at which it counts as full, because the last blocks are too few for most prompts."""
MOST_NAMED = 12
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Story:
    """History of one request of a run."""

    run: Run
    i: int
    folder: Path | None = None
    """Folder of the run's files."""

    @classmethod
    def of(cls, folder: Path, request: str) -> Story:
        """Find a request of a result by its row in the trace or by its name; raise UserError if there is none."""
        run = Run(Result.load(folder))
        rows = run.requests["row"].tolist()
        if run.names is not None and request in run.names:
            return cls(run, run.names.index(request), folder)
        if request.isdecimal() and int(request) in rows:
            return cls(run, rows.index(int(request)), folder)
        ends = f"rows {min(rows)} to {max(rows)}" if rows else "none"
        example = f", or names such as {run.names[0]}" if run.names else ""
        raise UserError(f"{folder}: no request {request!r} (there are {ends}{example})")

    def value(self, column: str) -> int:
        """Return a number from the request's record."""
        return int(self.run.requests[column][self.i])

    @cached_property
    def steps(self) -> dict[str, Any]:
        """Step rows of the request's replica, in order."""
        mine = self.run.steps["replica"] == self.value("replica")
        order = np.argsort(self.run.steps["step"][mine], kind="stable")
        return {name: column[mine][order] for name, column in self.run.steps.items()}

    def during(self, begin: int, end: int) -> Mask:
        """Return which rows of `steps` overlap a time span given in ns."""
        found: Mask = (self.steps["start_ns"] < end) & (self.steps["end_ns"] > begin)
        return found

    def lines(self) -> list[str]:
        """Return the history, one line per phase."""
        state = State(self.value("state"))
        name = f" ({self.run.names[self.i]})" if self.run.names else ""
        limit = self.run.scenario.slo
        lines = [
            f"request {self.value('row')}{name}: prompt {self.value('prompt_len'):,} tokens, output "
            f"{self.value('output_len'):,} of at most {self.value('max_tokens'):,}, replica {self.value('replica')}; "
            f"{state.name.lower()}"
        ]
        lines.append(f"{self._at('arrival_ns')} arrives: {self._crowd(self.value('arrival_ns'))}")
        if self.value("scheduled_ns") < 0:
            return [*lines, f"{self._at('finished_ns')} leaves the system without having run"]
        lines += [self._queue(), self._prompt()]
        lines += [self._output()] if self.value("output_len") > 1 else []
        if times := self.value("num_preemptions"):
            again = self.value("recomputed_tokens")
            lines.append(f"preempted {times} time{'s' * (times > 1)}: {again:,} tokens were computed again")
        lines += self._beside()
        if state == State.FINISHED:
            took = time_ms(self._ms("finished_ns", "arrival_ns"))
            lines.append(f"{self._at('finished_ns')} ends, {took} after it arrived; {self._limits(limit)}")
        else:
            lines.append(f"{self._at('finished_ns')} is {state.name.lower()}")
        return lines

    def _at(self, column: str) -> str:
        return f"at {(self.value(column) - self.run.begin_ns) / 1e9:,.3f} s"

    def _ms(self, later: str, earlier: str) -> float:
        return (self.value(later) - self.value(earlier)) / 1e6

    def _ahead(self, at: int) -> int:
        """Return the number of other requests that waited on the request's replica at a given time."""
        r = self.run.requests
        scheduled = np.where(r["scheduled_ns"] < 0, r["finished_ns"], r["scheduled_ns"])
        waiting = (r["replica"] == self.value("replica")) & (r["arrival_ns"] <= at) & (scheduled > at)
        waiting[self.i] = False
        return int(waiting.sum())

    def _crowd(self, at: int) -> str:
        r = self.run.requests
        runs = (r["replica"] == self.value("replica")) & (r["scheduled_ns"] >= 0) & (r["scheduled_ns"] <= at)
        return f"{int((runs & (r['finished_ns'] > at)).sum()):,} run and {self._ahead(at):,} wait on its replica"

    def _queue(self) -> str:
        waited, until = self._ms("scheduled_ns", "arrival_ns"), self._at("scheduled_ns")
        inside = self.during(self.value("arrival_ns"), self.value("scheduled_ns"))
        if waited <= 0 or not inside.any():
            return f"{until} is scheduled at once"
        return f"{until} is scheduled, after {time_ms(waited)} in the queue: {self._queue_cause(inside)}"

    def _queue_cause(self, inside: Mask) -> str:
        """Return the reason for the request's wait, taken from the fullest step during the wait."""
        s, scenario = self.steps, self.run.scenario
        sequences = int((s["decode_count"] + s["prefill_pieces"])[inside].max())
        slots = next((scenario.scheduler[name] for name in SLOTS if scenario.scheduler.get(name)), None)
        if slots is not None and sequences >= int(slots):
            return f"all {slots} slots in the batch were taken"
        memory = (s["kv_used"] + s["kv_internal"] + s["kv_external"])[inside].max()
        share = float(memory) / self.run.summary["kv"]["capacity_tokens"]
        if share >= FULL:
            return f"KV memory was {percent(share)} full"
        if int(inside.sum()) <= 2:
            return "the steps in progress had to finish"
        prompts = int((s["prefill_tokens"] * s["k"])[inside].sum())
        return f"{prompts:,} tokens of other prompts were computed first (up to {sequences:,} sequences per step)"

    def _prompt(self) -> str:
        begin, end = self.value("scheduled_ns"), self.value("first_token_ns")
        hit = self.value("hit_tokens")
        found = f"; {hit:,} of its tokens were found in the prefix cache" if hit else ""
        if end < 0:
            return f"its prompt was not fully computed{found}"
        inside = self.during(begin, end) & (self.steps["start_ns"] >= begin) & (self.steps["prefill_pieces"] > 0)
        steps = int(self.steps["k"][inside].sum())
        beside = float((self.steps["decode_count"][inside]).max(initial=0))
        return (
            f"{self._at('first_token_ns')} has its first token: {time_ms((end - begin) / 1e6)} for the prompt, over "
            f"{steps:,} step{'s' * (steps != 1)}, with up to {beside:,.0f} others decoding{found} (mainly "
            f"{first_token_cause(self.run, self.i)})"
        )

    def _output(self) -> str:
        begin, end = self.value("first_token_ns"), self.value("last_token_ns")
        inside = self.during(begin, end)
        s, whole = self.steps, max(end - begin, 1)
        prompts = float(s["elapsed_ns"][inside & (s["prefill_pieces"] > 0)].sum()) / whole
        batch = np.average(s["decode_count"][inside], weights=s["k"][inside]) if inside.any() else 1.0
        tokens = self.value("output_len") - 1
        return (
            f"{self._at('last_token_ns')} has its last token: {seconds(whole / 1000000000.0)} for {tokens:,} "
            f"more, {time_ms(whole / 1000000.0 / tokens)} each, in batches of {batch:,.0f}; steps that also "
            f"computed other requests' prompts took {percent(min(prompts, 1.0))} of that time (mainly "
            f"{output_cause(self.run, self.i)})"
        )

    def _limits(self, slo: dict[str, float]) -> str:
        said = []
        for name in ("ttft", "tpot", "e2el"):
            value = float(self.run.requests[f"{name}_ns"][self.i]) / 1e6
            if np.isfinite(value):
                missed = f" (over {slo[name]:g} ms)" if name in slo and value > slo[name] else ""
                said.append(f"{ {'ttft': 'TTFT', 'tpot': 'TPOT', 'e2el': 'E2E'}[name] } {time_ms(value)}{missed}")
        return ", ".join(said)

    def _beside(self) -> list[str]:
        """Return the requests with which this request shared the most steps, if the run recorded them."""
        path = self.folder / STEP_REQUESTS if self.folder is not None else None
        if path is None or not path.is_file():
            return []
        import pyarrow.parquet as pq

        with reading(path):
            table = pq.read_table(path, filters=[("replica", "=", self.value("replica"))])
            row, step = table["row"].to_numpy(), table["step"].to_numpy()
            tokens = table["num_scheduled_tokens"].to_numpy()
        mine = step[(row == self.value("row")) & (tokens > 0)]
        others = row[np.isin(step, mine) & (row != self.value("row")) & (tokens > 0)]
        rows, counts = np.unique(others, return_counts=True)
        order = np.lexsort((rows, -counts))[:MOST_NAMED]
        names = ", ".join(f"{rows[j]} ({counts[j]:,})" for j in order.tolist())
        first = f"computed in {len(mine):,} steps, {int(mine.min()):,} to {int(mine.max()):,}" if len(mine) else ""
        return [f"{first}; most often together with {names}" if names else f"{first}, alone"] if first else []

    def figure(self) -> Drawing:
        """Draw the request's phases above its replica's activity during them."""
        times = [self.value(c) for c in ("arrival_ns", "scheduled_ns", "first_token_ns", "last_token_ns")]
        last = max(self.value("finished_ns"), times[0] + 1)
        inside = self.during(times[0], last)
        s = {name: column[inside] for name, column in self.steps.items()}
        clock = (s["start_ns"] - self.run.begin_ns) / 1e9
        capacity = self.run.summary["kv"]["capacity_tokens"]
        panels = [
            ("Sequences in a step", s["decode_count"] + s["prefill_pieces"], "blue"),
            ("Prompt tokens in a step", s["prefill_tokens"], "violet"),
            ("KV memory, %", 100 * (s["kv_used"] + s["kv_internal"] + s["kv_external"]) / capacity, "teal"),
        ]
        marks = [(t - self.run.begin_ns) / 1e9 for t in (*times, last)]

        def paint(figure: Any, narrow: bool) -> None:
            grid = figure.subplots(1 + len(panels), 1, sharex=True, gridspec_kw={"height_ratios": [1, 2, 2, 2]})
            for (colour, _), begin, end in zip(PHASES, marks[:3], marks[1:4], strict=True):
                if end >= begin >= marks[0]:
                    grid[0].barh(0, end - begin, left=begin, color=INK[colour], linewidth=0)
            grid[0].set_yticks([])
            for axes, (title, values, colour) in zip(grid[1:], panels, strict=True):
                axes.step(clock, values, where="post", color=INK[colour], linewidth=1.2)
                axes.set_title(title, pad=4)
                axes.set_ylim(bottom=0)
            grid[-1].set_xlim(marks[0], marks[-1])
            grid[-1].set_xlabel("seconds since the first arrival")
            figure.subplots_adjust(left=0.11 if narrow else 0.06, right=0.985, top=0.98, bottom=0.11, hspace=0.5)

        title = f"Request {self.value('row')}"
        return wide("why", title, ". ".join(self.lines()), paint, (460, 460), legend=PHASES)


PHASES = (("amber", "waiting"), ("violet", "prompt"), ("blue", "output tokens"))
