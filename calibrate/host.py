"""Fit of host terms, the time of a served step beyond its kernels, to recorded steps.

Two sources of steps: engine step logs (composition and duration), and the gaps between events of a client's
log (first or last token of any request), which hold a whole number of steps of known composition. Front-end
time is what the TTFTs of the least loaded runs have beyond that. No other end-to-end figure is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servesim.calibrate.front import fit_front
from servesim.contracts import Batch
from servesim.cost import TableCostModel, build_cost_model
from servesim.cost.host import HostTerms
from servesim.cost.streamed import LONG_PROMPT
from servesim.errors import UserError
from servesim.experiments.recording import (
    RecordedRun,
    csv_columns,
    gpu_of,
    known_model,
    numbers,
    read_text,
    settings_beside,
)
from servesim.experiments.recording_formats import read_run
from servesim.hardware import Gpu, ModelSpec

STEP_COLUMNS = {"dt_us", "contiguous", "n_tokens_out", "n_prefill_done", "prefill_tokens_done", "sum_ctx"}
TOGETHER_NS = 3_000_000
"""Events nearer than this belong to one step."""
FEW = 15
"""Steps a composition must have been seen in to count."""
FITTED = ("exposed", "exposed_per_sampled", "attention_per_mixed_decode", "sustained_slowdown", "sustained_after")
SHARES = (0.0, 0.8, 0.85, 0.9, 0.95, 1.0)
"""Candidates for `kv_bandwidth_share`."""


@dataclass(frozen=True, slots=True)
class Observed:
    """A recorded time and its step."""

    source: str
    batch: Batch
    ns: float
    decode: Batch | None = None
    """Steps of this composition may have run before it within `ns`."""
    whole: bool = False
    """`ns` is exactly one step; otherwise, without `decode`, a whole number of them."""


def read_steps(path: Path, root: Path) -> list[Observed]:
    """Read the steps of an engine log: CSV with `STEP_COLUMNS`. Rows that are not a true step time are left out."""
    columns = csv_columns(read_text(path), path)
    names = ("dt_us", "n_tokens_out", "n_prefill_done", "prefill_tokens_done", "sum_ctx")
    rows = np.stack([numbers(columns, name, path) for name in names], axis=1)
    true = np.array([text == "True" for text in columns["contiguous"]])
    observed = []
    for dt, out, done, tokens, context in rows[true & np.isfinite(rows).all(axis=1)].tolist():
        sampled, pieces, new = int(out), int(done), int(tokens)
        if bool(pieces) != bool(new) or pieces > sampled:
            continue
        prefill = [(new // pieces, 0)] * (pieces - 1) + [(new - new // pieces * (pieces - 1), 0)] if pieces else []
        decodes = sampled - pieces
        batch = Batch(decodes + new, prefill, decodes, max(int(context) - new, 0), 0, 0, 1, sampled)
        observed.append(Observed("steps", batch, dt * 1e3, whole=True))
    return observed


def read_gaps(run: RecordedRun) -> list[Observed]:
    """Read steps between the events of a client's log. A gap that ends with one first token holds that prompt's step
    after some decode steps; one between two last tokens holds decode steps alone."""
    first = run.arrival_ns + run.ttft_ms * 1e6
    last = run.arrival_ns + run.e2el_ms * 1e6
    per_token = (last - first) / np.maximum(run.output_len - 1, 1)
    events, firsts, ends = np.sort(np.concatenate((first, last))), np.sort(first), np.sort(last)

    def running(start: float, end: float, at: float) -> tuple[int, int]:
        there = np.flatnonzero((first < start) & (last >= end))
        tokens = np.clip((at - first[there]) / np.maximum(per_token[there], 1.0), 0, run.output_len[there])
        return len(there), int((run.prompt_len[there] + tokens).sum())

    observed = []
    for i in np.argsort(first).tolist():
        at = first[i]
        before = int(np.searchsorted(events, at - TOGETHER_NS))
        if not before or (np.abs(first - at) < TOGETHER_NS).sum() != 1:
            continue
        count, context = running(at - TOGETHER_NS, at - TOGETHER_NS, at)
        if count:
            new = int(run.prompt_len[i])
            step = Batch(new + count, [(new, 0)], count, context, 0, 0, 1, count + 1)
            decode = Batch(count, [], count, context, 0, 0, 1, count)
            observed.append(Observed(run.name, step, float(at - events[before - 1]), decode))
    for start, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        k = int(np.searchsorted(firsts, start - TOGETHER_NS))
        if end - start < TOGETHER_NS or (k < len(firsts) and firsts[k] < end + TOGETHER_NS):
            continue
        count, context = running(start, end - TOGETHER_NS, (start + end) / 2)
        if count:
            observed.append(Observed(run.name, Batch(count, [], count, context, 0, 0, 1, count), end - start))
    return observed


def fit_host(folder: Path, leave_out: Sequence[str] = ()) -> HostTerms:
    """Fit host terms to every step log and client log under a folder, which must be of one engine, model and GPU.
    `leave_out`: names of runs not to be used."""
    steps, runs, settings = _read(folder)
    model, gpu = _deployment(folder, settings, runs)
    version = str(settings.get("vllm_version", "")) or next((r.server.engine.partition(" ")[2] for r in runs), "")
    used = [run for run in runs if run.name not in leave_out]
    observed = (steps if "steps" not in leave_out else []) + [o for run in used for o in read_gaps(run)]
    if not observed:
        wanted = ", ".join(sorted(STEP_COLUMNS))
        raise UserError(f"{folder}: no recorded steps: wanted CSV with {wanted}, or client logs")
    chip = tuple(name for name in ("h100", "h200") if gpu.name in ("h100", "h200")) or (gpu.name,)
    base = HostTerms(engine=f"vllm {version}".strip(), gpus=chip, pads_to_graphs=True, monotone_gemms=True)
    best: tuple[float, HostTerms, NDArray[Any]] | None = None
    for share in SHARES:
        terms = replace(base, kv_bandwidth_share=share)
        x, residuals = _solve(build_cost_model(model, gpu, host=terms), observed, model.num_layers)
        error = float(np.abs(residuals).mean())
        if best is None or error < best[0]:
            fitted: dict[str, Any] = dict(zip(FITTED, _rounded(x), strict=True))
            best = (error, replace(terms, **fitted), residuals)
    assert best is not None
    _, terms, residuals = best
    provenance = {
        "model": model.name,
        "gpu": gpu.name,
        "logs": sorted({o.source for o in observed}),
        "steps": len(observed),
        "compositions": len(residuals),
        "mean_abs_residual_percent": round(float(np.abs(residuals).mean()), 2),
        "p95_abs_residual_percent": round(float(np.percentile(np.abs(residuals), 95)), 2),
    }
    fitted_front: HostTerms = fit_front(replace(terms, provenance=provenance), used)
    return fitted_front


def _read(folder: Path) -> tuple[list[Observed], list[RecordedRun], dict[str, Any]]:
    steps: list[Observed] = []
    runs = []
    settings: dict[str, Any] = {}
    for path in sorted(p for p in folder.rglob("*") if p.name.endswith((".csv", ".csv.gz"))):
        if set(read_text(path)[:4096].split("\n", 1)[0].strip().split(",")) >= STEP_COLUMNS:
            steps += read_steps(path, folder)
            settings = settings_beside(path, folder)
        elif (run := read_run(path, folder)) is not None:
            runs.append(run)
    return steps, runs, settings


def _deployment(folder: Path, settings: dict[str, Any], runs: list[RecordedRun]) -> tuple[ModelSpec, Gpu]:
    models = {r.server.model for r in runs} | ({known_model(settings["model"])} if "model" in settings else set())
    gpus = {r.server.gpu for r in runs} | ({gpu_of(folder / "x", settings)} if settings else set())
    models, gpus = models - {None}, gpus - {None}
    if not models or not gpus:
        raise UserError(f"{folder}: no recorded run in it says its model and its GPU")
    if len(models) != 1 or len(gpus) != 1:
        raise UserError(
            f"{folder}: host terms are fitted to runs of one model on one GPU, "
            f"not {' and '.join(sorted(map(str, models)))} on {' and '.join(sorted(map(str, gpus)))}"
        )
    return ModelSpec.load(str(models.pop())), Gpu.load(str(gpus.pop()))


def _solve(cost: TableCostModel, observed: Sequence[Observed], layers: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Fit five terms (ns, and the slowdown) by robust least squares over compositions; return them and residuals in per
    cent. The first two, of every step, are fitted to steps that only decode, the others, of steps with prompts, to
    those. How many decode steps a gap between ends holds is decided by the terms so far, so it is solved a few times
    over."""
    from scipy.optimize import least_squares

    table = _Steps(cost, observed, layers)
    x = np.array([200e3, 5e3, 1e3, 0.05, 20e6])
    scale = np.array([1e5, 1e4, 1e3, 0.1, 1e7])
    most = np.array([3e6, 2e5, 1e5, 0.3, 6e7])
    for _ in range(4):
        groups, times, weights = table.grouped(x)
        for terms, used in ((slice(0, 2), groups.prefill == 0), (slice(2, 5), (groups.prefill > 0))):
            if not used.any():
                continue

            of = (groups, times, weights * used)
            bounds = (np.zeros_like(most[terms]), most[terms])
            options: dict[str, Any] = {"bounds": bounds, "x_scale": scale[terms], "loss": "soft_l1", "f_scale": 2.0}
            x[terms] = least_squares(_residuals, x[terms], args=(x.copy(), terms, *of), **options).x
    return x, np.asarray((groups.model(x) / times - 1) * 100)


def _residuals(
    y: NDArray[Any], x: NDArray[Any], of: slice, groups: _Steps, times: NDArray[Any], weights: NDArray[Any]
) -> NDArray[Any]:
    """Return weighted residuals in per cent with the terms `of` the vector x replaced by y."""
    x[of] = y
    return np.asarray((groups.model(x) / times - 1) * 100 * weights)


class _Steps:
    """Columns of observed steps: the factors of the model's terms."""

    def __init__(self, cost: TableCostModel, observed: Sequence[Observed], layers: int) -> None:
        batches = [o.batch for o in observed]
        self.gpu = np.array([float(cost.price(b).gpu_ns) for b in batches])
        self.warm = np.array([cost.computing_ns(b) for b in batches])
        self.sampled = np.array([b.sampled for b in batches])
        self.prefill = np.array([b.linear_tokens - b.decode_count for b in batches])
        decodes = np.array([b.decode_count for b in batches])
        self.mixed = layers * decodes * np.minimum(1.0, self.prefill / LONG_PROMPT)
        self.before = np.array([float(cost.price(o.decode).gpu_ns) if o.decode else 0.0 for o in observed])
        self.whole = np.array([o.whole for o in observed])
        self.ns = np.array([o.ns for o in observed])

    def model(self, x: NDArray[Any]) -> NDArray[Any]:
        """Return the duration of each step under the terms."""
        beside = x[2] * self.mixed
        hot = np.maximum(0.0, self.warm + beside - x[4]) * x[3]
        return np.asarray(self.gpu + beside + hot + x[0] + x[1] * self.sampled)

    def grouped(self, x: NDArray[Any]) -> tuple[_Steps, NDArray[Any], NDArray[Any]]:
        """Return medians by composition, their times, and weights by how often each was seen."""
        ours = self.model(x)
        count = np.where(self.whole | (self.before > 0), 1, np.maximum(np.round(self.ns / ours), 1))
        times = self.ns / count
        kept = (self.before > 0) | ((count <= 5) & (np.abs(times / ours - 1) < 0.25))
        size = np.where(self.prefill > 0, np.round(2 * np.log2(np.maximum(self.prefill, 1))), 0).astype(int)
        width = np.searchsorted([1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128], self.sampled)
        keys = np.where(kept, size * 100 + width, -1)
        for key in np.unique(keys[self.before > 0]).tolist():
            # The shortest of these gaps hold the prompt's step alone, the others decode steps before it.
            there = np.flatnonzero((keys == key) & (self.before > 0))
            least = np.percentile(self.ns[there], 1) + 0.6 * np.median(self.before[there])
            keys[there[self.ns[there] > least]] = -1
        found, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
        usable = [i for i in range(len(found)) if found[i] >= 0 and counts[i] >= FEW]
        groups = object.__new__(_Steps)
        for name in ("gpu", "warm", "sampled", "mixed", "prefill"):
            setattr(groups, name, np.array([np.median(getattr(self, name)[inverse == i]) for i in usable]))
        medians = np.array([np.median(times[inverse == i]) for i in usable])
        return groups, medians, np.sqrt(np.minimum(counts[usable], 100) / 100)


def _rounded(x: NDArray[Any]) -> list[float]:
    return [float(round(v)) if v > 1 else round(float(v), 4) for v in x.tolist()]
