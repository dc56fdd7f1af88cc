"""`servesim measure --short`: the kind of host that a server runs on, in ten lines, and its host terms."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servesim.errors import UserError

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
            raise UserError(f"--short has its own loads: leave out --{name.replace('_', '-')}, or --short")
    return replace(SHORT, minutes=minutes if "minutes" in given else SHORT.minutes, seed=seed)


def conclude(found: Measurement, labels: Mapping[str, Any], date: str, out: Path) -> tuple[dict[str, str], list[str]]:
    """Return the text of the file of fitted host terms by its name, and the lines to print."""
    from servesim.calibrate.bursts import fit_bursts, write
    from servesim.cost.host import HostTerms
    from servesim.experiments.measure.files import CELLS
    from servesim.experiments.measure.short import beside, cells_of, kind_of_host
    from servesim.hardware import Gpu

    cells = cells_of(found, labels, date)
    loads = beside(found, cells)
    base = HostTerms.load(GREEDY.get(loads[0].host, loads[0].host)).on(Gpu.load(str(labels["gpu"])).name)
    try:
        terms = fit_bursts(cells, base)
    except UserError as error:
        told = f"Next: validate, see {out / CELLS}; host terms could not be fitted: {error}"
        return {}, [*_table(loads), f"This host is {kind_of_host(loads)}", told]
    with tempfile.TemporaryDirectory(prefix="servesim-host-") as folder:
        text = write(Path(folder) / HOST, terms)
        fitted = beside(found, cells, Path(folder) / HOST)
    return {HOST: text}, [*_table(loads, fitted), *_words(loads, base, terms, out)]


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


def _words(loads: Sequence[Load], base: HostTerms, terms: HostTerms, out: Path) -> list[str]:
    from servesim.experiments.measure.short import kind_of_host, per_request_ms

    per_request = per_request_ms(loads)
    burst = (
        "" if per_request is None else f"{per_request[0]:.1f} ms a request in a burst, {per_request[1]:.1f} simulated"
    )
    step, each = terms.exposed - base.exposed, terms.exposed_per_sampled - base.exposed_per_sampled
    return [
        f"This host is {kind_of_host(loads)}",
        f"API server: {burst}; steps: {step / 1e6:+.2f} ms each and {each / 1e3:+.1f} us for each request in one",
        f"Next: servesim run --host {out / HOST} ..., whose terms were fitted to these loads",
    ]
