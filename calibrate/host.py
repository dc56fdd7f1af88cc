"""Fit of host terms (the time that a served step takes beyond its kernels) to recorded steps.

There are two sources of steps: engine step logs (composition and duration), and the gaps between events of a client's
log (first or last token of any request), which span an integer number of steps of known composition. Front-end time is
the part of the least loaded runs' TTFT that these terms do not explain. No other end-to-end figure is used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servesim.calibrate.front import fit_front
from servesim.contracts import Batch
from servesim.cost import build_cost_model
from servesim.cost.host import HostTerms
from servesim.cost.streamed import BesidePrompt
from servesim.errors import UserError
from servesim.experiments.recording import (
    RecordedRun,
    csv_columns,
    gpu_of,
    known_model,
    numbers,
    settings_beside,
)
from servesim.experiments.recording_formats import read_run
from servesim.hardware import Gpu, ModelSpec
from servesim.hardware.model import kv_heads_per_gpu
from servesim.untrusted import read_text

STEP_COLUMNS = {"dt_us", "contiguous", "n_tokens_out", "n_prefill_done", "prefill_tokens_done", "sum_ctx"}
TOGETHER_NS, LAG_NS = 3_000_000, 25_000
"""Maximum time between events of one step: the first value, plus the second for each streaming request (one
    process sends all events)."""
FEW = 15
"""Minimum number of recorded steps for a composition to be used in the fit."""
FITTED = (
    "exposed",
    "sampling_per_logit",
    "mixed_filling",
    "mixed_kv_excess",
    "sustained_flops_share",
    "sustained_after",
)
SHARES = (0.0, 0.8, 0.85, 0.9, 0.95)
"""Candidates for `kv_bandwidth_share`; no kernel reads at a higher share than the last one."""
FLOPS_SHARES = np.arange(0.5, 0.9001, 0.01)
"""Fractions of the data sheet's FLOPS that are candidates for `sustained_flops_share`."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Recorded time and the step that took it."""

    source: str
    batch: Batch
    ns: float
    decode: Batch | None = None
    """Composition of decode steps that may have run before this step within `ns`."""
    whole: bool = False
    """Whether `ns` covers exactly one step; if not, and `decode` is not set, it covers an integer number of steps."""


def read_steps(path: Path, root: Path) -> list[Observed]:
    """Read the steps of an engine log: CSV with `STEP_COLUMNS`. Rows that do not hold a true step time are left out."""
    columns = csv_columns(path)
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
        batch = Batch(
            decodes + new, prefill, decode_count=decodes, decode_context_sum=max(int(context) - new, 0), sampled=sampled
        )
        observed.append(Observed("steps", batch, dt * 1e3, whole=True))
    return observed


def read_gaps(run: RecordedRun) -> list[Observed]:
    """Read the gaps between the events of a client's log, each from the first event of one step to the first event of
    another. A gap that ends with first tokens contains some decode steps and then the step of their prompts; a gap
    between last tokens contains decode steps only."""
    first = run.arrival_ns + run.ttft_ms * 1e6
    last = run.arrival_ns + run.e2el_ms * 1e6
    per_token = (last - first) / np.maximum(run.output_len - 1, 1)
    events, firsts, ends = np.sort(np.concatenate((first, last))), np.sort(first), np.sort(last)
    there = np.searchsorted(firsts, events) - np.searchsorted(ends, events)
    begins = np.flatnonzero(np.diff(events, prepend=-np.inf) > TOGETHER_NS + LAG_NS * there)
    prompts = np.split(np.argsort(first, kind="stable"), np.searchsorted(firsts, events[begins])[1:])
    observed = []
    for i, (start, end) in enumerate(pairwise(events[begins].tolist()), start=1):
        running = np.flatnonzero((first < end) & (last >= end))
        count, done = len(running), run.prompt_len[prompts[i]].tolist()
        if not count or (len(prompts[i - 1]) and not done):
            continue
        tokens = np.clip((end - first[running]) / np.maximum(per_token[running], 1.0), 0, run.output_len[running])
        context = int((run.prompt_len[running] + tokens).sum())
        decode = Batch.decodes(count, context)
        if done:
            new = sum(done)
            step = Batch(
                new + count,
                [(piece, 0) for piece in done],
                decode_count=count,
                decode_context_sum=context,
                sampled=count + len(done),
            )
            observed.append(Observed(run.name, step, end - start, decode))
        else:
            observed.append(Observed(run.name, decode, end - start))
    return observed


def fit_host(folder: Path, leave_out: Sequence[str] = ()) -> HostTerms:
    """Fit host terms to every step log and client log under a folder, which must all have the same engine, model and
    GPU. `leave_out` names runs to ignore."""
    steps, runs, settings = _read(folder)
    model, gpu = _deployment(folder, settings, runs)
    version = str(settings.get("vllm_version", "")) or next((r.server.engine.partition(" ")[2] for r in runs), "")
    used = [run for run in runs if run.name not in leave_out]
    observed = (steps if "steps" not in leave_out else []) + [o for run in used for o in read_gaps(run)]
    if not observed:
        wanted = ", ".join(sorted(STEP_COLUMNS))
        raise UserError(f"{folder}: no recorded steps: CSV files with {wanted} or client logs are required")
    chip = tuple(name for name in ("h100", "h200") if gpu.name in ("h100", "h200")) or (gpu.name,)
    base = HostTerms(engine=f"vllm {version}".strip(), gpus=chip, pads_to_graphs=True, monotone_gemms=True)
    best: tuple[float, HostTerms, NDArray[Any]] | None = None
    for share in SHARES:
        terms = replace(base, kv_bandwidth_share=share)
        x, residuals = _solve(_Steps(model, gpu, terms, observed))
        error = float(np.abs(residuals).mean())
        if best is None or error < best[0]:
            x[1] /= model.vocab_size
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
        raise UserError(f"{folder}: none of its recorded runs names both model and GPU")
    if len(models) != 1 or len(gpus) != 1:
        raise UserError(
            f"{folder}: all runs must be of one model on one GPU, not {' and '.join(sorted(map(str, models)))} on "
            f"{' and '.join(sorted(map(str, gpus)))}"
        )
    return ModelSpec.load(str(models.pop())), Gpu.load(str(gpus.pop()))


def _solve(table: _Steps) -> tuple[NDArray[Any], NDArray[Any]]:
    """Fit the terms `FITTED` (the second is per row of logits) by robust least squares over compositions; return them
    and the residuals in percent. The first two apply to every step and are fitted to decode-only steps; the others
    apply to steps with prompts and are fitted to those. The terms determine the number of decode steps in a gap between
    last tokens, so the fit is repeated a few times."""
    from scipy.optimize import least_squares

    x = np.array([200e3, 5e3, 30e3, 0.3, 0.75, 20e6])
    scale = np.array([1e5, 1e4, 1e4, 0.1, 0.05, 1e7])
    least, most = np.zeros(len(x)), np.array([3e6, 2e5, 1e6, 3.0, FLOPS_SHARES[-1], 6e7])
    least[4] = FLOPS_SHARES[0]
    for _ in range(4):
        groups, times, weights = table.grouped(x)
        for terms, used in ((slice(0, 2), groups.prefill == 0), (slice(2, 6), (groups.prefill > 0))):
            if not used.any():
                continue

            of = (groups, times, weights * used)
            bounds = (least[terms], most[terms])
            options: dict[str, Any] = {"bounds": bounds, "x_scale": scale[terms], "loss": "soft_l1", "f_scale": 2.0}
            x[terms] = least_squares(_residuals, x[terms], args=(x.copy(), terms, *of), **options).x
    return x, np.asarray((groups.model(x) / times - 1) * 100)


def _residuals(
    y: NDArray[Any], x: NDArray[Any], of: slice, groups: _Steps, times: NDArray[Any], weights: NDArray[Any]
) -> NDArray[Any]:
    """Return the weighted residuals in percent for the vector x, with its elements `of` replaced by y."""
    x[of] = y
    return np.asarray((groups.model(x) / times - 1) * 100 * weights)


class _Steps:
    """Observed steps as columns: for each step, the factors of the model's terms."""

    def __init__(self, model: ModelSpec, gpu: Gpu, terms: HostTerms, observed: Sequence[Observed]) -> None:
        cost = build_cost_model(model, gpu, host=terms)
        batches = [o.batch for o in observed]
        self.gpu = np.array([float(cost.price(b).gpu_ns) for b in batches])
        self.warm = np.array([cost.computing_ns(b) for b in batches])
        self.sampled = np.array([b.sampled for b in batches])
        self.prefill = np.array([b.linear_tokens - b.decode_count for b in batches])
        windows, heads = Counter(layer.window for layer in model.layers), kv_heads_per_gpu(model, 1)
        token_ns = model.kv_bytes_per_token_per_layer() * 1e9 / gpu.bandwidth
        self.filling, self.reading = (
            np.array([_beside(b, [(BesidePrompt(*unit, heads, w), n) for w, n in windows.items()]) for b in batches])
            for unit in ((1.0, 0.0), (0.0, token_ns))
        )
        self.longer = _longer(model, gpu, terms, batches)
        self.before = np.array([float(cost.price(o.decode).gpu_ns) if o.decode else 0.0 for o in observed])
        self.whole = np.array([o.whole for o in observed])
        self.ns = np.array([o.ns for o in observed])

    def model(self, x: NDArray[Any]) -> NDArray[Any]:
        """Return the duration of each step under the given terms."""
        beside = x[2] * self.filling + x[3] * self.reading
        place = (x[4] - FLOPS_SHARES[0]) / (FLOPS_SHARES[1] - FLOPS_SHARES[0])
        i = min(int(place), len(FLOPS_SHARES) - 2)
        longer = self.longer[:, i] + (self.longer[:, i + 1] - self.longer[:, i]) * (place - i)
        hot = longer * np.maximum(0.0, 1.0 - x[5] / np.maximum(self.warm + beside, 1.0))
        return np.asarray(self.gpu + beside + hot + x[0] + x[1] * self.sampled)

    def grouped(self, x: NDArray[Any]) -> tuple[_Steps, NDArray[Any], NDArray[Any]]:
        """Return the median columns of each composition, the median times, and weights by the number of
        observations."""
        ours = self.model(x)
        count = np.where(self.whole | (self.before > 0), 1, np.maximum(np.round(self.ns / ours), 1))
        times = self.ns / count
        kept = ((self.before > 0) & (self.ns > ours / 2)) | ((count <= 5) & (np.abs(times / ours - 1) < 0.25))
        size = np.where(self.prefill > 0, np.round(2 * np.log2(np.maximum(self.prefill, 1))), 0).astype(int)
        width = np.searchsorted([1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128], self.sampled)
        keys = np.where(kept, size * 100 + width, -1)
        for key in np.unique(keys[self.before > 0]).tolist():
            # The shortest of these gaps contain only the prompt's step; the others also contain decode steps before it.
            there = np.flatnonzero((keys == key) & (self.before > 0))
            least = np.percentile(self.ns[there], 1) + 0.6 * np.median(self.before[there])
            keys[there[self.ns[there] > least]] = -1
        found, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
        usable = [i for i in range(len(found)) if found[i] >= 0 and counts[i] >= FEW]
        if not usable:
            raise UserError(f"too few recorded steps: no composition was seen {FEW} times near its predicted time")
        groups = object.__new__(_Steps)
        for name in ("gpu", "warm", "sampled", "filling", "reading", "longer", "prefill"):
            setattr(groups, name, np.array([np.median(getattr(self, name)[inverse == i], axis=0) for i in usable]))
        medians = np.array([np.median(times[inverse == i]) for i in usable])
        return groups, medians, np.sqrt(np.minimum(counts[usable], 100) / 100)


def _beside(batch: Batch, attention: Sequence[tuple[BesidePrompt, int]]) -> float:
    """Return the excess time summed over the layers of all kinds of attention."""
    if not batch.prefill or not batch.decode_count:
        return 0.0
    context, new = batch.decode_context_sum / batch.decode_count, sum(piece[0] for piece in batch.prefill)
    return sum(layers * excess.at(batch.decode_count, context, new)[0] for excess, layers in attention)


def _longer(model: ModelSpec, gpu: Gpu, terms: HostTerms, batches: Sequence[Batch]) -> NDArray[Any]:
    """Return, for each step and each of `FLOPS_SHARES`, the extra time of the step if it is limited to that share of
    the FLOPS from the moment the step starts."""
    known: dict[int, list[float]] = {}
    costs = [build_cost_model(model, gpu, host=replace(terms, sustained_flops_share=share)) for share in FLOPS_SHARES]
    for batch in batches:
        if batch.linear_tokens not in known:
            known[batch.linear_tokens] = [cost.throttling_ns(batch) for cost in costs]
    return np.array([known[batch.linear_tokens] for batch in batches])


def _rounded(x: NDArray[Any]) -> list[float]:
    return [float(round(v)) if v > 1 else round(float(v), 5) for v in x.tolist()]
