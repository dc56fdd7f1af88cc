"""First run of the best variant, shown on an experiment's page as it is on its own page."""

from __future__ import annotations

from contextlib import suppress

from servesim.errors import UserError
from servesim.reports.drawings import RUN
from servesim.reports.experiment import Experiment
from servesim.reports.page import Block, Section
from servesim.reports.run_tables import operators_table
from servesim.reports.slowest import slowest
from servesim.reports.svg import Drawing

SHOWN = ("timeline", "kv_memory", "gantt", "operators", "roofline", "acceptance", "drafts")


def best_run(experiment: Experiment) -> Section:
    """Return the section of the best run; it has no blocks if no variant was best or its run was not kept."""
    drawn: list[Drawing] = []
    try:
        run = experiment.run()
    except UserError:
        return Section("", [])
    for name in SHOWN:
        with suppress(UserError):  # steps that can no longer be priced
            if (drawing := RUN[name](run, None)) is not None:
                drawn.append(drawing)
    blocks = [Block("drawing", "", drawing) for drawing in drawn]
    with suppress(UserError):
        if run.priced is not None:  # versus the roofline
            at = next(i for i, drawing in enumerate(drawn) if drawing.name == "roofline") + 1
            blocks.insert(at, Block("table", "Costliest operators", operators_table(run.priced)))
    blocks += [Block("table", table.title, table, wide=True) for table in slowest(run)]
    return Section(f"One run of {experiment.best}" if experiment.best else "One run", blocks)
