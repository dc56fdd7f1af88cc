"""Individual figures by name: the figures of the pages, in Python.

    servesim.figure(result, "timeline").save("timeline.svg")
    servesim.figure(servesim.sweep(..., out="grid"), "pareto")  # a notebook shows it

RUN lists the figures of a run, including any one run of an experiment; FIGURES of compare_page, sweep_page and
capacity_page list the figures of experiments.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servesim.errors import UserError, suggest
from servesim.hardware import Gpu
from servesim.plugins.trust import takes_trust
from servesim.reports.experiment import Experiment, Figures
from servesim.reports.figures.fleet import fleet
from servesim.reports.figures.gantt import gantt
from servesim.reports.figures.latency import cdf
from servesim.reports.figures.operators import operators
from servesim.reports.figures.queues import queue_by
from servesim.reports.figures.replicas import by_replica
from servesim.reports.figures.roofline import roofline
from servesim.reports.figures.speculation import by_position, over_time
from servesim.reports.figures.timeline import memory_map, timeline
from servesim.reports.figures.views import router_view
from servesim.reports.page import experiment_pages
from servesim.reports.panels import one_panel
from servesim.reports.run import Run
from servesim.reports.svg import Drawing
from servesim.reports.variants import ABSENT, absent, renamed
from servesim.run.result import Result

if TYPE_CHECKING:
    import pandas as pd

    Source = Result | pd.DataFrame | str | Path
    """Run, result of compare, sweep or capacity, or directory that one of them wrote."""

Window = tuple[float, float] | None
RUN: dict[str, Callable[[Run, Window], Drawing | None]] = {
    "latency_cdf": lambda run, _: cdf(run),
    "timeline": lambda run, _: timeline(run),
    "queue_class": lambda run, _: queue_by(run, "class"),
    "queue_tenant": lambda run, _: queue_by(run, "tenant"),
    "kv_memory": lambda run, _: memory_map(run),
    "gantt": gantt,
    "replicas": lambda run, _: by_replica(run),
    "router_view": lambda run, _: router_view(run),
    "fleet": lambda run, _: fleet(run),
    "operators": lambda run, _: operators(run, run.priced) if run.priced is not None else None,
    "roofline": lambda run, _: _roofline(run),
    "acceptance": lambda run, _: by_position(drafts) if (drafts := run.summary["speculation"]) else None,
    "drafts": lambda run, _: over_time(run) if run.summary["speculation"] else None,
}
"""Functions that draw each figure of a run, given the run and the time window of the request chart; they return None if
there is nothing to draw."""


def _roofline(run: Run) -> Drawing | None:
    s = run.scenario
    return roofline(Gpu.load(s.gpu), s.dtype, run.priced.points) if run.priced is not None else None


@takes_trust
def figures(source: Source) -> list[str]:
    """Return the names that `figure` accepts for the source."""
    found = _opened(source)
    return list(RUN if isinstance(found, Result) else {**_of_experiment(found), **RUN})


@takes_trust
def figure(
    source: Source,
    name: str,
    *,
    variant: str | None = None,
    window_s: Window = None,
    panel: str | None = None,
    names: Mapping[str, str] | None = None,
) -> Drawing:
    """Return one figure: `.to_svg()`, `.to_matplotlib()`, `.save("name.png")`; a notebook displays it automatically.

    For an experiment, the figures of a run show a variant's first run: the best variant's, unless one is named.
    `window_s` is the number of seconds that `gantt` shows, `panel` the title of the only panel to draw. `names` has new
    names for variants, or for parts of their labels between slashes. Warn of variants that are not drawn. Raise
    UserError for other names, or if there is nothing to draw.
    """
    drawing = _whole(source, name, variant, window_s, names or {})
    for words in (words for colour, words in drawing.legend if colour == ABSENT):
        warnings.warn(f"figure {name}: {words}", stacklevel=3)  # from whoever called, past takes_trust
    return drawing if panel is None else one_panel(drawing, panel)


def _whole(source: Source, name: str, variant: str | None, window_s: Window, names: Mapping[str, str]) -> Drawing:
    found = _opened(source)
    known = figures(source)
    if name not in known:
        raise UserError(f"unknown figure {name!r}{suggest(name, known)}")
    left = ""
    if isinstance(found, Experiment):
        found, by_label = renamed(found, names)
        of_all = _of_experiment(found).get(name)
        if of_all is None or variant is not None:
            drawing = RUN[name](found.run(by_label.get(variant or "", variant)), window_s)
        else:
            drawing = of_all(found)
            left = "".join(f": {words}" for _, words in absent(found.document, ()))
    elif names:
        raise UserError("names: a run has no variants to rename")
    else:
        drawing = RUN[name](Run(found), window_s)
    if drawing is None:
        raise UserError(f"figure {name}: nothing to draw{left}")
    return drawing


def _of_experiment(experiment: Experiment) -> Figures:
    found: Figures = _module(experiment.kind).FIGURES
    return found


def _module(kind: str) -> Any:
    return import_module(experiment_pages()[f"{kind}.json"])


def _opened(source: Source) -> Result | Experiment:
    if isinstance(source, Result):
        return source
    if isinstance(source, str | Path):
        kinds = [name.removesuffix(".json") for name in experiment_pages() if (Path(source) / name).is_file()]
        kinds = [kind for kind in kinds if hasattr(_module(kind), "FIGURES")]
        return Experiment.load(Path(source), kinds[0]) if kinds else Result.load(source)
    document = getattr(source, "attrs", {}).get("document")
    if document is None:
        raise UserError("figures can be drawn from results, directories, and what compare, sweep and capacity return")
    folder = source.attrs["folder"]
    return Experiment(document, Path(folder) if folder is not None else None)
