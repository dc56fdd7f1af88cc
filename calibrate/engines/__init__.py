"""Real engines, driven open loop by a trace, and their logs, which `servesim validate` reads.

A log is a folder. `requests.jsonl` has one line per request: `input_toks`, `output_toks`, and the times `queued_ts`,
`scheduled_ts`, `first_token_ts` and `last_token_ts` in seconds on one clock. `steps.csv` has one row per engine step:
the columns of `servesim calibrate host`, the processor time of the step, and `pieces`, its exact composition.
`meta.json` has the model, the engine and its version, and the settings, under the names that `servesim validate` reads.
`warmup_steps.csv` has the steps of the warm-up requests that precede the log, and `host.yaml` the host times fitted to
them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from servesim.contracts.cost import Batch
from servesim.cost.host import HostTerms
from servesim.cost.model import TableCostModel
from servesim.errors import UserError
from servesim.run.result_files import write_text
from servesim.untrusted import csv_rows
from servesim.workload.trace import Trace

STEPS_HEADER = (
    "t_us", "dt_us", "contiguous", "n_tokens_out", "n_prefill_done", "prefill_tokens_done", "sum_ctx", "cpu_us",
    "pieces",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Piece:
    """One request's share of a step."""

    new: int
    past: int
    sampled: bool
    """Whether the step produced a token for the request; false for a prompt that continues in the next step."""

    @property
    def decodes(self) -> bool:
        """Whether this is a single token after earlier ones: a decode, or the last token of a split prompt, which
        counts as a decode because it costs the same."""
        return self.new == 1 and self.past > 0 and self.sampled


@dataclass(frozen=True, slots=True)
class EngineStep:
    """One step of an engine; times are in seconds."""

    start: float
    end: float
    pieces: tuple[Piece, ...]
    cpu: float = float("nan")
    """Processor time of the engine's thread in seconds."""

    def batch(self) -> Batch:
        """Return the step as the batch that the cost model prices."""
        contexts = [p.past + p.new for p in self.pieces if p.decodes]
        return Batch(
            sum(p.new for p in self.pieces),
            [(p.new, p.past) for p in self.pieces if not p.decodes],
            decode_count=len(contexts),
            decode_context_sum=sum(contexts),
            decode_context_sumsq=sum(c * c for c in contexts),
            decode_context_max=max(contexts, default=0),
            sampled=sum(p.sampled for p in self.pieces),
        )

    def row(self) -> list[Any]:
        """Return the values of the columns in `STEPS_HEADER`."""
        prompts = [p for p in self.pieces if not p.decodes]
        whole = all(p.sampled and not p.past for p in prompts)
        tokens = sum(p.new for p in prompts) if whole else 0
        return [
            round(self.start * 1e6),
            round((self.end - self.start) * 1e6, 1),
            whole,  # the columns cannot express a partial prompt in a step
            sum(p.sampled for p in self.pieces),
            len(prompts) if whole else 0,
            tokens,
            sum(p.past + p.new for p in self.pieces),
            round(self.cpu * 1e6, 1),
            " ".join(f"{p.new}+{p.past}{'' if p.sampled else '~'}" for p in self.pieces),
        ]


@dataclass
class RequestLog:
    """Times of one request in seconds; NaN for an event that has not happened."""

    row: int
    prompt_len: int
    output_len: int
    queued: float = float("nan")
    scheduled: float = float("nan")
    first_token: float = float("nan")
    last_token: float = float("nan")
    tokens: int = 0

    def took_part(self, start: float) -> None:
        """Record that a step that began at `start` computes part of the request."""
        if np.isnan(self.scheduled):
            self.scheduled = start

    def delivered(self, tokens: int, at: float) -> None:
        """Record that the request has `tokens` tokens at time `at`."""
        if tokens > self.tokens:
            self.tokens, self.last_token = tokens, at
            if np.isnan(self.first_token):
                self.first_token = at

    def to_dict(self) -> dict[str, Any]:
        return {
            "request_id": str(self.row),
            "input_toks": self.prompt_len,
            "output_toks": self.output_len,
            "queued_ts": self.queued,
            "scheduled_ts": self.scheduled,
            "first_token_ts": self.first_token,
            "last_token_ts": self.last_token,
        }


@dataclass
class EngineLog:
    """Record of an engine serving a trace."""

    meta: dict[str, Any]
    requests: list[RequestLog]
    steps: list[EngineStep]
    warmup: list[EngineStep] = field(default_factory=list)

    def check(self) -> None:
        """Raise UserError unless every request received all its tokens."""
        short = [r for r in self.requests if r.tokens != r.output_len]
        if short:
            first = short[0]
            raise UserError(
                f"the engine gave request {first.row} only {first.tokens} of {first.output_len} tokens ("
                f"{len(short)} of {len(self.requests)} requests are incomplete): nothing was logged"
            )

    def write(self, folder: Path, host: HostTerms | None = None) -> None:
        """Write the log to a folder that is new, empty, or contains an earlier log."""
        import yaml

        try:
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()) and not (folder / "requests.jsonl").is_file():
                raise UserError(f"--out {folder}: contains other files but no engine log: choose another folder")
            lines = [json.dumps(r.to_dict()) for r in self.requests]
            write_text(folder / "requests.jsonl", "\n".join(lines) + "\n", "--out")
            write_text(folder / "steps.csv", steps_csv(self.steps), "--out")
            write_text(folder / "warmup_steps.csv", steps_csv(self.warmup), "--out")
            write_text(folder / "meta.json", json.dumps(self.meta, indent=1) + "\n", "--out")
            if host is not None:
                write_text(folder / "host.yaml", yaml.safe_dump(host.to_dict(), sort_keys=False), "--out")
        except OSError as error:
            raise UserError(f"--out {folder}: {error.strerror}") from error


def steps_csv(steps: Iterable[EngineStep]) -> str:
    """Return the contents of the steps file."""
    return "\n".join([",".join(STEPS_HEADER), *(",".join(map(str, step.row())) for step in steps)]) + "\n"


def read_steps_csv(path: Path) -> list[EngineStep]:
    """Read the steps of a steps file."""
    steps = []
    rows = csv_rows(path)
    header = next(rows)
    if missing := [name for name in STEPS_HEADER if name not in header]:
        raise UserError(f"{path}: column {missing[0]!r} is missing")
    for number, row in enumerate(rows, 2):
        try:
            start, ns, cpu = (float(row[name]) / 1e6 for name in ("t_us", "dt_us", "cpu_us"))
            steps.append(EngineStep(start, start + ns, _pieces(row["pieces"]), cpu))
        except (ValueError, TypeError, AttributeError) as error:
            raise UserError(f"{path}: row {number} is not a step: {error}") from error
    return steps


def _pieces(text: str) -> tuple[Piece, ...]:
    found = []
    for part in text.split():
        new, past = part.rstrip("~").split("+")
        found.append(Piece(int(new), int(past), not part.endswith("~")))
    return tuple(found)


def fit_step_host(steps: Sequence[EngineStep], cost: TableCostModel, engine: str) -> HostTerms:
    """Fit the time that a step takes beyond its kernels by robust least squares: a constant plus a constant per
    sequence, both at least 0."""
    from scipy.optimize import least_squares

    if len(steps) < 8:
        raise UserError(f"host terms need at least 8 warm-up steps, but there are {len(steps)}: raise --warmup")
    kernels = np.array([float(cost.price(s.batch()).gpu_ns) for s in steps])
    measured = np.array([(s.end - s.start) * 1e9 for s in steps])
    sequences = np.array([float(len(s.pieces)) for s in steps])
    beyond = measured - kernels
    scale = max(float(np.median(np.abs(beyond))), 1e3)

    def residuals(x: Any) -> Any:
        return (beyond - x[0] - x[1] * sequences) / scale

    start = [max(float(np.median(beyond)), 0.0) + 1.0, 1.0]
    bounds, steps_of = ([0, 0], [np.inf, np.inf]), [scale, scale / 10]
    fitted = least_squares(residuals, start, loss="soft_l1", f_scale=0.05, bounds=bounds, x_scale=steps_of).x
    constant, each = (float(round(v)) for v in fitted)
    predicted = kernels + constant + each * sequences
    provenance = {
        "steps": len(steps),
        "mean_abs_residual_percent": round(float(np.mean(np.abs(predicted / measured - 1.0)) * 100), 2),
        "kernel_share_percent": round(float(kernels.sum() / measured.sum() * 100), 2),
    }
    return HostTerms(engine=engine, overlapped=constant, overlapped_per_sequence=each, provenance=provenance)


def prompt_tokens(trace: Trace, row: int, vocab: int, run: int) -> list[int]:
    """Return random token ids for a prompt, equal wherever prompts share content in the trace."""
    runs: list[tuple[tuple[int, ...], int]]
    if trace.content is None:
        runs = [((run, row), int(trace.prompt_len[row]))]
    else:
        shared = trace.content.runs(row)
        runs = [((run, len(trace) + c) if c >= 0 else (run, 0, -c), length) for c, length in shared]
    tokens: list[int] = []
    for key, length in runs:
        tokens += np.random.default_rng(key).integers(1, vocab, length).tolist()
    return tokens


def warmup_trace(trace: Trace, count: int) -> Trace:
    """Return warm-up requests with the trace's own gaps and, in reverse order, its own lengths, so that they differ
    from the logged sequence."""
    count = min(count, len(trace))
    rows = np.arange(len(trace))[::-1][:count]
    gaps = np.diff(trace.arrival_ns[:count], prepend=trace.arrival_ns[:1])
    return Trace.from_lengths("warmup", np.cumsum(gaps), trace.prompt_len[rows], trace.output_len[rows])
