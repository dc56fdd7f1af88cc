"""Figures as inline SVG: matplotlib draws, the page's stylesheet colours.

A painter draws with the colours of `INK`. They are stand-ins: in the SVG each becomes a CSS variable, so that one
drawing serves light, dark and print. Text stays text in the page's own font. The bytes depend on what is drawn alone.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from servesim.errors import UserError
from servesim.reports.ink import HALF, INK, NARROW, STYLE, WIDE, head_of, light_colours

if TYPE_CHECKING:
    import pandas as pd

FILE = 'xmlns="http://www.w3.org/2000/svg" font-family="system-ui, sans-serif" data-generator="servesim"'
"""Attributes that an SVG file needs and an SVG element on the page does not."""

Painter = Callable[[Any, bool], None]
"""Draws into a matplotlib Figure; the flag: for a narrow page."""


@dataclass(frozen=True)
class Drawing:
    """A figure of the page: what it shows, in words too."""

    name: str
    """Unique on the page: the ids in the SVG begin with it."""
    title: str
    alt: str
    """Text alternative, for readers who cannot see it."""
    svg: Markup = field(repr=False)
    caption: str = ""
    legend: tuple[tuple[str, str], ...] = ()
    """(colour, meaning) of what is not labelled in the drawing itself."""
    wide: bool = False
    paint: Painter | None = field(default=None, repr=False, compare=False)
    size: tuple[int, int] = (WIDE, 300)
    """Size of the drawing (of two versions the wide one) in CSS pixels."""
    narrow_height: int = 0
    """Height of the version for phones, and for a column of a paper; 0: that of `size`."""
    tidy: Callable[[], list[tuple[Any, ...]]] | None = field(default=None, repr=False, compare=False)
    """Makes the rows of `data` where what is drawn is not what is meant: names in place of numbers, own scales."""

    @property
    def data(self) -> pd.DataFrame:
        """The values drawn, one per row: see servesim.reports.data."""
        from servesim.reports.data import frame_of

        return frame_of(self)

    def to_svg(self) -> str:
        """Return the figure as the text of an SVG file, in light colours."""
        return standalone(self)

    _repr_svg_ = to_svg  # notebooks show it

    def to_matplotlib(self, width: float | None = None) -> Any:
        """Return the figure as a matplotlib Figure, in light colours, to be changed or saved in another format. `width`
        in inches: as it stands in a paper (servesim.reports.paper)."""
        from servesim.reports.paper import as_matplotlib, on_paper

        return as_matplotlib(self) if width is None else on_paper(self, width)

    def save(self, path: str | Path, width: float | None = None) -> None:
        """Write the figure as .svg, or as any other format of matplotlib (.png, .pdf).

        `width` in inches: as it stands in a paper, 3.3 in a column and 7 across two: legible text, markers and hatches
        that tell series apart in grey, no title (the caption has it). UserError for a width outside 2 to 20.
        """
        from servesim.reports.files import writing
        from servesim.reports.paper import write

        if width is None and str(path).endswith(".svg"):
            with writing(Path(path)) as file:
                file.write(self.to_svg())
        else:
            write(self.to_matplotlib(width), Path(path), self.name)


def wide(
    name: str, title: str, alt: str, paint: Painter, heights: tuple[int, int], caption: str = "",
    narrow: bool | None = None, **more: Any,
) -> Drawing:  # fmt: skip
    """Draw a figure across the page, and a second version for phones; `heights` of the two in CSS pixels. `narrow`:
    only the version for phones, or only the other, where it is known what the page is read on."""
    if narrow is not None:
        width, height = (NARROW, heights[1]) if narrow else (WIDE, heights[0])
        svg = _svg(name, title, alt, paint, width, height)
        return Drawing(name, title, alt, svg, caption, wide=True, paint=paint, size=(width, height), **more)
    versions = Markup("").join(
        Markup('<div class="on-{0}">{1}</div>').format(kind, _svg(f"{name}-{kind}", title, alt, paint, width, height))
        for kind, width, height in (("wide", WIDE, heights[0]), ("narrow", NARROW, heights[1]))
    )
    sizes: dict[str, Any] = {"size": (WIDE, heights[0]), "narrow_height": heights[1]}
    return Drawing(name, title, alt, versions, caption, wide=True, paint=paint, **sizes, **more)


def half(name: str, title: str, alt: str, paint: Painter, height: int = 290, caption: str = "", **more: Any) -> Drawing:
    """Draw a figure half as wide as the page, and as wide as a phone."""
    svg = _svg(name, title, alt, paint, HALF, height)
    return Drawing(name, title, alt, svg, caption, paint=paint, size=(HALF, height), **more)


def _svg(name: str, title: str, alt: str, paint: Painter, width: int, height: int) -> Markup:
    try:
        import matplotlib
    except ValueError as error:  # of MPLBACKEND, which it reads when it is imported
        raise UserError(f"no figure can be drawn: matplotlib: {error}") from error
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    out = io.StringIO()
    style: dict[Any, Any] = {**matplotlib.rcParamsDefault, **STYLE, "svg.hashsalt": name}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(width / 72, height / 72))
        FigureCanvasSVG(figure)
        paint(figure, width < HALF)
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
        meaning = json.dumps(_axes(figure, height), separators=(",", ":"), ensure_ascii=False)
    return Markup(_inline(out.getvalue(), name, title, alt, (width, height), meaning))


def _axes(figure: Any, height: int) -> list[dict[str, Any]]:
    """Return what pixels of each axes mean, for the page's script: the box as [left, top, right, bottom], x and y."""
    found = []
    for axes in figure.axes:
        x0, y0, x1, y1 = (72 * float(v) / figure.dpi for v in axes.get_window_extent().extents)
        pixels = [round(v, 1) for v in (x0, height - y1, x1, height - y0)]
        meaning = {"x": _axis(axes.xaxis, _shared_label(axes)), "y": _axis(axes.yaxis, axes.get_ylabel())}
        found.append({"box": pixels, "title": axes.get_title("left"), **meaning})
    return found


def _shared_label(axes: Any) -> str:
    """Return the words of the x axis; of panels that share one, the lowest has them."""
    return next((one.get_xlabel() for one in axes.get_shared_x_axes().get_siblings(axes) if one.get_xlabel()), "")


def _axis(axis: Any, words: str) -> dict[str, Any] | None:
    """Return scale, limits, unit (the axis's gid) and label of an axis; None: it has names instead of numbers."""
    from matplotlib.ticker import FixedFormatter

    unit = axis.get_gid()
    if axis.get_scale() not in ("linear", "log") or (
        isinstance(axis.get_major_formatter(), FixedFormatter) and not unit
    ):
        return None
    start, end = (float(f"{limit:.7g}") for limit in axis.get_view_interval())
    return {"scale": axis.get_scale(), "from": start, "to": end, "unit": unit or "plain", "label": words}


def _inline(text: str, name: str, title: str, alt: str, size: tuple[int, int], meaning: str) -> str:
    """Return the SVG element alone, without what only a file needs, its text alternative and meaning added."""
    width, height = size
    body = text[text.index("<svg") :]
    body = body[body.index(">") + 1 :].strip()
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.S)
    body = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", body, flags=re.S)
    body = re.sub(r'<g id="axes_\d+"', '<g class="axes"', body)
    body = re.sub(r'<g id="[^"]*"', "<g", body)  # layer names: unused, and not unique on a page
    body = re.sub(r"<!--.*?-->\s*", "", body, flags=re.S)
    body = re.sub(r'(id="|href="#|url\(#)([0-9a-z]+)', rf"\g<1>{name}-\g<2>", body)
    body = re.sub(r"<[^>]+>", lambda tag: _shorter(tag[0]), body)
    body = re.sub(r"font-family: [^;\"]*;? ?", "", body).replace("font-weight: 700", "font-weight: 600")
    for colour, stand_in in INK.items():
        body = body.replace(stand_in, f"var(--{colour})")
    body = re.sub(r"\s*\n\s*", "\n", body)
    head = (
        f'<svg role="img" aria-labelledby="{name}-t {name}-d" viewBox="0 0 {width} {height}" '
        f'xmlns:xlink="http://www.w3.org/1999/xlink" style="max-width: {int(width * 1.15)}px" '
        f'data-axes="{escape(meaning)}">'
        f'<title id="{name}-t">{escape(title)}</title><desc id="{name}-d">{escape(alt)}</desc>'
    )
    return head + body


def standalone(drawing: Drawing) -> str:
    """Return a drawing as a file of its own, title and legend above it, in the colours of the light page; of two
    versions the wide one."""
    light, text = light_colours(), str(drawing.svg)
    text = text[text.index("<svg") : text.index("</svg>")]
    width, height = (int(size) for size in re.findall(r'viewBox="0 0 (\d+) (\d+)"', text)[0])
    head = head_of(drawing)
    text = text.replace(f'viewBox="0 0 {width} {height}"', f'viewBox="0 {-head} {width} {height + head}"')
    lines = [f'<rect y="{-head}" width="{width}" height="{height + head}" fill="var(--surface)"/>']
    lines.append(f'<text x="12" y="{26 - head}" font-size="15" font-weight="600">{escape(drawing.title)}</text>')
    for i, (colour, words) in enumerate(drawing.legend):
        y = 48 - head + 18 * i
        lines.append(f'<rect x="12" y="{y - 10}" width="10" height="10" rx="3" fill="var(--{colour})"/>')
        lines.append(f'<text x="28" y="{y}" font-size="13" fill="var(--muted)">{escape(words)}</text>')
    end = text.index("</desc>") + len("</desc>")
    text = "\n".join((text[:end], *lines, text[end:])) + "</svg>\n"
    text = re.sub(r"var\(--(\w+)\)", lambda found: light[found[1]], text)
    return text.replace("<svg", f"<svg {FILE}", 1)


def _shorter(tag: str) -> str:
    """Shorten an SVG tag: tenths of a pixel are enough, and a tag has room in one line."""
    return re.sub(r"(\d\.\d)\d+", r"\1", " ".join(tag.split()))
