"""Colors, style and sizes of all figures, whether for a page, a file or a paper."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from servesim.reports.svg import Drawing

COLOURS = (
    "ink", "muted", "rule", "surface", "blue", "teal", "amber", "rose", "violet", "slate", "sky", "lime",
)  # fmt: skip
INK = {name: f"#0101{i + 1:02x}" for i, name in enumerate(COLOURS)}
"""Placeholder colors by the names of the CSS variables that replace them."""

SERIES = ("blue", "amber", "teal", "violet", "rose", "sky", "lime", "slate")
"""Colors for series, in order."""

WIDE, NARROW, HALF = 1040, 330, 500
"""Widths in CSS pixels: full page, phone, one of two columns. The stylesheet shows the narrow version where text of the
other one would be smaller than 11 pixels."""

TEXT = 12
"""Size of all text but titles, in CSS pixels: 11 on a phone of 360 pixels, and at the width from which the wide version
is shown."""

STYLE: dict[str, Any] = {
    "pdf.fonttype": 42,  # several venues reject the default, Type 3 fonts
    "ps.fonttype": 42,
    "svg.fonttype": "none",
    "text.parse_math": False,
    "path.simplify_threshold": 0.3,
    "font.size": TEXT,
    "axes.edgecolor": INK["rule"],
    "axes.labelcolor": INK["muted"],
    "axes.titlecolor": INK["ink"],
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 9,
    "axes.titley": 1.0,  # nothing above a panel would move its title, so need not be measured
    "axes.labelsize": TEXT,
    "axes.linewidth": 1.0,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "grid.color": INK["rule"],
    "grid.linewidth": 0.8,
    "text.color": INK["ink"],
    "xtick.color": INK["rule"],
    "xtick.labelcolor": INK["muted"],
    "xtick.labelsize": TEXT,
    "xtick.major.size": 3,
    "xtick.minor.size": 0,
    "ytick.color": INK["rule"],
    "ytick.labelcolor": INK["muted"],
    "ytick.labelsize": TEXT,
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "legend.fontsize": TEXT,
}

HERE = Path(__file__).resolve().parent


def painted(drawing: Drawing, width: int, height: int, narrow: bool) -> Any:
    """Return a matplotlib Figure of `width` x `height` CSS pixels as the painter draws it, in the colors of INK."""
    from matplotlib.figure import Figure

    assert drawing.paint is not None
    figure = Figure(figsize=(width / 72, height / 72), dpi=72)
    drawing.paint(figure, narrow)
    return figure


@contextmanager
def light_ink() -> Iterator[dict[str, str]]:
    """Apply the light page's colors and the figures' style while painters draw; yield the colors by name."""
    import matplotlib

    light, stand_ins = light_colours(), dict(INK)
    by_stand_in = {stand_in: light[name] for name, stand_in in stand_ins.items()}
    style: dict[Any, Any] = {k: by_stand_in.get(v, v) if isinstance(v, str) else v for k, v in STYLE.items()}
    style |= {"figure.facecolor": light["surface"], "axes.facecolor": light["surface"]}
    try:
        INK.update({name: light[name] for name in INK})  # painters look colors up while they draw
        with matplotlib.rc_context({**matplotlib.rcParamsDefault, **style}):
            yield light
    finally:
        INK.update(stand_ins)


def light_colours() -> dict[str, str]:
    """Return the colors of the light page by name."""
    sheet = (HERE / "style.css").read_text(encoding="utf-8")
    return dict(re.findall(r"--(\w+): (#\w+)", sheet[: sheet.index("}")]))


def head_of(drawing: Drawing) -> int:
    """Return the space for title and legend above a standalone figure, in CSS pixels."""
    return 40 + 18 * len(drawing.legend)
