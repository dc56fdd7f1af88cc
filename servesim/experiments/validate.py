"""Errors of simulated servers relative to recorded ones, with the figures of both and the noise between
repeated runs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from servesim.cost.build import IDEAL, ROOFLINE_ONLY
from servesim.cost.host import HostTerms, host_terms
from servesim.cost.tables import KernelTables
from servesim.errors import UserError
from servesim.experiments.named import grouped
from servesim.experiments.recording import METRICS, Floats, RecordedRun
from servesim.experiments.recording_formats import read_folder
from servesim.experiments.recording_replay import Replay, replay
from servesim.metrics.distribution import describe

STATISTICS = ("mean", "p50", "p99")
Figures = dict[str, Any]
"""{"ttft"|"tpot"|"e2el": {"mean", "p50", "p99"} in ms, "output_throughput" in tokens/s}, each None if not recorded."""


@dataclass(frozen=True)
class Comparison:
    """One recorded run and its replays."""

    run: RecordedRun
    measured: Figures
    simulated: Figures | None
    """Figures with host terms, or without them if none are known for the engine."""
    error: Figures | None
    zero_shot: dict[str, Figures] | None
    """{"simulated", "error"} of the replay from kernel times alone."""
    host: str | None
    """Name of the host terms."""
    unpriced: str = ""
    noise: Figures | None = None
    """Relative spread (largest over smallest, minus 1) of the figures over repeats of the run."""
    hit_rate: float | None = None
    """Share of prompt tokens found in the simulated prefix cache, with host terms. None if not replayed, or if the
    server has no such cache."""
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready mapping, with errors as signed fractions and per_request as the mean absolute error."""
        return {
            "name": self.run.name,
            "format": self.run.format,
            "requests": len(self.run),
            "model": self.run.server.model,
            "gpu": self.run.server.gpu,
            "engine": self.run.server.engine,
            "measured": self.measured,
            "simulated": self.simulated,
            "error": self.error,
            "host_terms": self.host,
            "zero_shot": self.zero_shot,
            "repeat_noise": self.noise,
            "prefix_hit_rate": {"measured": self.run.hit_rate, "simulated": self.hit_rate},
            "not_priced": self.unpriced or None,
            "notes": list(self.notes),
        }


def validate(
    folder: str | Path,
    *,
    host: HostTerms | None = None,
    model: str | None = None,
    gpu: str | None = None,
    tables: str | Path | None = None,
    num_blocks: int | None = None,
    on_run: Callable[[str], None] | None = None,
) -> list[Comparison]:
    """Replay every recorded run under a folder. `host` replaces the shipped terms of each run's engine. `model`, `gpu`
    and `num_blocks` (KV blocks) apply to runs that do not state theirs. `tables` are kernel tables that replace the
    shipped ones."""
    if tables is not None and tables not in (ROOFLINE_ONLY, IDEAL):
        KernelTables.load(folder=tables)  # a wrong folder is not the runs' error
    found = []
    for run in read_folder(Path(folder)):
        own = run.server
        server = replace(own, model=own.model or model, gpu=own.gpu or gpu, num_blocks=own.num_blocks or num_blocks)
        if on_run is not None:
            on_run(run.name)
        found.append(compare(replace(run, server=server), host, str(tables) if tables is not None else None))
    noise = dict(_noise(found))
    return [replace(c, noise=noise.get(c.run.name)) for c in found]


def compare(run: RecordedRun, host: HostTerms | None = None, tables: str | None = None) -> Comparison:
    """Replay one run with kernel times alone, and with host terms."""
    measured = measured_figures(run)
    terms = host.on(run.server.gpu or "") if host is not None else host_terms(run.server.engine, run.server.gpu or "")
    try:
        if run.unpriced:
            raise UserError(run.unpriced)
        plain = replay(run, None, tables)
        full = replay(run, terms, tables) if terms is not None else plain
    except UserError as error:
        return Comparison(run, measured, None, None, None, None, str(error), notes=run.notes)
    notes = list(run.notes)
    if full.refused:
        notes.append(f"{full.refused} requests were refused by the simulated server")
    if run.server.num_blocks is None:
        notes.append(
            f"KV blocks are not recorded; the memory model gives {full.num_blocks} (--num-gpu-blocks sets the "
            "server's number)"
        )
    caches = run.server.prefix_caching and (run.prompt_id is not None or run.hit_rate is not None)
    if caches:
        notes.append(_hit_rates(run, full))
    return Comparison(
        run=run,
        measured=measured,
        simulated=figures_of(full),
        error=errors(run, measured, full),
        zero_shot={"simulated": figures_of(plain), "error": errors(run, measured, plain)},
        host=terms.name if terms is not None else None,
        hit_rate=full.hit_rate if caches else None,
        notes=tuple(notes),
    )


def _hit_rates(run: RecordedRun, full: Replay) -> str:
    if run.hit_rate is None:
        return (
            f"prefix cache: {full.hit_rate:.1%} of prompt tokens found in the simulated cache. The server's hit rate "
            "is not recorded, so only TTFT shows whether the simulated rate is right"
        )
    off = f"{100 * (full.hit_rate - run.hit_rate):+.1f} points"
    return f"prefix cache: {run.hit_rate:.1%} of prompt tokens found, {full.hit_rate:.1%} in the simulation ({off})"


def measured_figures(run: RecordedRun) -> Figures:
    """Return the figures of the recorded run."""
    figures = figures_of(run)
    for metric in METRICS:
        if figures[metric]["mean"] is None:
            figures[metric] = {s: run.totals.get(f"{metric}_{s}") for s in STATISTICS}
    return figures | {"output_throughput": run.totals.get("output_throughput") or figures["output_throughput"]}


def figures_of(run: RecordedRun | Replay) -> Figures:
    """Return the figures of the requests of a recorded run or of a replay."""
    figures: Figures = {metric: _statistics(getattr(run, f"{metric}_ms")) for metric in METRICS}
    return figures | {"output_throughput": _throughput(run)}


def errors(run: RecordedRun, measured: Figures, outcome: Replay) -> Figures:
    """Return errors as signed fractions by figure. `per_request` is the mean over requests of the absolute error."""
    simulated, found = figures_of(outcome), Figures()
    for metric in METRICS:
        found[metric] = {s: _relative(simulated[metric][s], measured[metric][s]) for s in STATISTICS}
        found[metric]["per_request"] = _per_request(*(getattr(one, f"{metric}_ms") for one in (run, outcome)))
    found["output_throughput"] = _relative(simulated["output_throughput"], measured["output_throughput"])
    return found


def _statistics(values: Floats) -> dict[str, float | None]:
    found = describe(values[np.isfinite(values)])
    return {name: None if found is None else found[name] for name in STATISTICS}


def _throughput(run: RecordedRun | Replay) -> float | None:
    known = np.isfinite(run.e2el_ms)
    if not known.any():
        return None
    arrival_ns = run.arrival_ns[known]
    ends = arrival_ns / 1e9 + run.e2el_ms[known] / 1e3
    return float(run.output_len[known].sum() / (ends.max() - arrival_ns.min() / 1e9))


def _relative(ours: float | None, theirs: float | None) -> float | None:
    return ours / theirs - 1.0 if ours is not None and theirs else None


def _per_request(theirs: Floats, ours: Floats) -> float | None:
    known = np.isfinite(theirs) & np.isfinite(ours) & (theirs > 0)
    return float(np.abs(ours[known] / theirs[known] - 1.0).mean()) if known.any() else None


def _noise(found: list[Comparison]) -> Iterator[tuple[str, Figures]]:
    """Yield the spread over runs of the same kind of server with the same number of requests, the same total prompt
    length (within 1 %), and either the same sending time (within 1 %) or the same number of clients."""

    def kind(run: RecordedRun) -> Hashable:
        span = round(float(np.log(max(int(run.arrival_ns[-1]), 1))), 2) if run.concurrency is None and len(run) else 0
        total = round(float(np.log(max(int(run.prompt_len.sum()), 1))), 2)
        return run.server, len(run), total, span, run.concurrency

    for group in grouped((kind(c.run), c) for c in found).values():
        if len(group) < 2 or group[0].measured["e2el"]["mean"] is None:
            continue
        spread: Figures = {
            metric: {s: _spread([c.measured[metric][s] for c in group]) for s in STATISTICS} for metric in METRICS
        }
        spread["output_throughput"] = _spread([c.measured["output_throughput"] for c in group])
        for c in group:
            yield c.run.name, spread


def _spread(values: list[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return max(known) / min(known) - 1.0 if known and min(known) > 0 else None
