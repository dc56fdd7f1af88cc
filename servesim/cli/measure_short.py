"""`servesim measure --short`: the kind of host that a server runs on, in ten lines, and its host terms."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servesim.errors import UserError
from servesim.run.result_files import writable

if TYPE_CHECKING:
    from servesim.cost.host import HostTerms
    from servesim.experiments.measure.short import Load
    from servesim.experiments.measure.study import Measurement, Plan

HOST = "host.yaml"
"""Name of the file of fitted host terms."""
GREEDY = {"vllm-0.12-h100": "vllm-0.12-greedy"}
"""Host terms whose steps sort logits, and those without it: requests of a measurement have a temperature of 0."""
OWN_LOADS = ("idle", "clients", "saturated", "prompt", "output", "repeats", "requests", "idle_requests")
"""Options of loads, which the short measurement has of its own."""


def short_plan(given: Set[str], minutes: float, seed: int) -> Plan:
    """Return the loads of the short measurement. `given` holds the names of options that were given; one that
    would change nothing is refused."""
    from dataclasses import replace

    from servesim.experiments.measure.short import SHORT

    for name in OWN_LOADS:
        if name in given:
            raise UserError(f"--short has its own loads; remove --{name.replace('_', '-')} or --short")
    return replace(SHORT, minutes=minutes if "minutes" in given else SHORT.minutes, seed=seed)


def conclude(found: Measurement, labels: Mapping[str, Any], date: str, out: Path) -> list[str]:
    """Fit host terms, write them beside the measurement in `out`, and return the lines to print. If no terms can be
    fitted, the last line says why, and no file is written."""
    from servesim.calibrate.bursts import fit_bursts, write
    from servesim.cost.host import HostTerms
    from servesim.experiments.measure.files import CELLS
    from servesim.experiments.measure.short import beside, cells_of
    from servesim.hardware import Gpu

    cells = cells_of(found, labels, date)
    loads: Sequence[Load] = ()
    try:
        loads = beside(found, cells)
        base = HostTerms.load(GREEDY.get(loads[0].host, loads[0].host)).on(Gpu.load(str(labels["gpu"])).name)
        terms = fit_bursts(cells, base)
        with tempfile.TemporaryDirectory(prefix="servesim-host-") as folder:
            text = write(Path(folder) / HOST, terms)
            fitted = beside(found, cells, Path(folder) / HOST)
    except UserError as error:
        known = [*_table(loads), *_words(loads)] if loads else []
        check = "check --gpu, --tp, --dtype and --flags, and that nothing else used the server"
        return [*known, f"No {HOST}: {error} ({check}); the measurements are in {out / CELLS}"]
    with writable(out / HOST):
        (out / HOST).write_text(text, encoding="utf-8")
    following = f"Next: servesim run --host {out / HOST} ..., whose terms were fitted to these loads"
    return [*_table(loads, fitted), *_words(loads, base, terms), following]


def _table(loads: Sequence[Load], fitted: Sequence[Load] = ()) -> list[str]:
    metrics = {"ttft": "TTFT", "tpot": "TPOT", "e2el": "E2E"}
    heads = "".join(f"  {f'{name} ms measured, simulated':>26}" for name in metrics.values())
    lines = [f"{'prompt/answer':>20}{heads}{f'  with {HOST}' if fitted else ''}"]
    for load, after in zip(loads, fitted or loads, strict=True):
        point = load.run.point
        many = "one client" if point.kind == "idle" else f"{point.clients} at once"
        columns, ratios = "", ""
        for metric in metrics:
            measured, ours = getattr(load.measured, metric), getattr(load.simulated, metric)
            shown = metric in load.judged and measured > 0
            columns += f"  {measured:>9,.1f} {ours:>9,.1f} x{ours / measured:<5.2f}" if shown else f"  {'-':>26}"
            ratios += f" x{getattr(after.simulated, metric) / measured:<5.2f}" if shown else "   -   "
        lines.append(f"{many:<11}{f'{point.prompt}/{point.output}':>9}{columns} {ratios if fitted else ''}".rstrip())
    return lines


def _words(loads: Sequence[Load], base: HostTerms | None = None, terms: HostTerms | None = None) -> list[str]:
    """Return the kind of host, and what is known of its API server and, with fitted terms, of its steps."""
    from servesim.experiments.measure.short import kind_of_host, per_request_ms

    known = []
    if (per_request := per_request_ms(loads)) is not None:
        known.append(f"API server: {per_request[0]:.1f} ms a request in a burst, {per_request[1]:.1f} simulated")
    if base is not None and terms is not None:
        step, each = terms.exposed - base.exposed, terms.exposed_per_sampled - base.exposed_per_sampled
        known.append(f"steps: {step / 1e6:+.2f} ms each and {each / 1e3:+.1f} us for each request in one")
    line = "; ".join(known)
    return [f"This host is {kind_of_host(loads)}", *([line[0].upper() + line[1:]] if line else [])]
