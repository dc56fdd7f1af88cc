"""Explorer page: controls, and space for the results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from servesim.reports.explore.controls import Control
from servesim.reports.page import Page

STEPS = 1000
"""Number of slider positions."""
AROUND = 20.0
"""Range factor of a slider without bounds: it goes from the value divided by this to the value times this."""
FIRST = {"slo.ttft": 500.0, "slo.tpot": 50.0, "scheduler.max_num_seqs": 256.0, "speculation.k": 3.0}
"""Values around which sliders of unset values range."""


def explore_page(
    controls: Sequence[Control], title: str, subtitle: str, variants: Sequence[tuple[str, dict[str, str]]] = ()
) -> Page:
    """Return the page. `variants` are the variants of a sweep, each a name and a state."""
    groups = [
        (name, [(control, _slider(control)) for control in found])
        for name, found in groupby(controls, lambda control: control.group)
    ]
    return Page(
        "explore",
        "explorer",
        title,
        subtitle,
        values={"groups": groups, "variants": list(variants)},
        scripts=("page.js", "zoom.js", "sliders.js", "explore.js"),
        styles=("style.css", "explore.css"),
    )


def _slider(control: Control) -> dict[str, Any] | None:
    """Return the ends of a control's slider and its initial position, or None for a choice."""
    if control.choices:
        return None
    at = float(control.value) if control.value else FIRST.get(control.key, control.low)
    low, high = control.low, control.high
    if control.logarithmic:
        low, high = max(low, at / AROUND), min(high, at * AROUND)
        place = math.log(at / low) / math.log(high / low)
    else:
        place = (at - low) / (high - low)
    return {
        "low": f"{low:.6g}",
        "high": f"{high:.6g}",
        "at": round(STEPS * place) if control.value else 0,
        "steps": STEPS,
    }
