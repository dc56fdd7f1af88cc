"""Page of the canvases, self-contained."""

from __future__ import annotations

from markupsafe import Markup

from servesim.reports.canvases import canvases, data
from servesim.reports.page import Page


def canvases_page(model: str, gpu: str) -> Page:
    """Return the page, which begins with this model and GPU."""
    found = canvases(model, gpu)
    return Page(
        "canvases",
        "lecture",
        f"Serving by hand: {len(found)} formulas with sliders",
        "What simulations do step by step, for one step or one sequence",
        values={"canvases": found, "data": Markup(data())},
        scripts=(
            "page.js",
            "zoom.js",
            "sliders.js",
            "canvases/formulas.js",
            "canvases/chart.js",
            "canvases/controls.js",
        ),
        styles=("style.css", "explore.css", "canvases/canvases.css"),
    )
