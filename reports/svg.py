"""Figures as inline SVG: matplotlib draws them, and the page's stylesheet colors them.

A painter draws with the colors of `INK`. They are placeholders: in the SVG, each becomes a CSS variable, so that one
drawing serves light, dark and print. Text stays text in the page's own font. The bytes depend only on the content.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from servesim.errors import UserError
from servesim.reports.ink import HALF, INK, NARROW, STYLE, WIDE, head_of, light_colours
from servesim.reports.legible import legible

if TYPE_CHECKING:
    import pandas as pd

FILE = 'xmlns="http://www.w3.org/2000/svg" font-family="system-ui, sans-serif" data-generator="servesim"'
"""Attributes that an SVG file needs and an SVG element on the page does not."""

Painter = Callable[[Any, bool], None]
"""Function that draws into a matplotlib Figure; the flag is true for a narrow page."""


@dataclass(frozen=True)
class Drawing:
    """Figure on the page, with a description in words."""

    name: str
    """Name unique to the page; the ids in the SVG begin with it."""
    title: str
    alt: str
    """Text alternative, for readers who cannot see it."""
    svg: Markup = field(repr=False)
    caption: str = ""
    legend: tuple[tuple[str, str], ...] = ()
    """Pairs of (color, meaning) for everything that the drawing itself does not label."""
    wide: bool = False
    paint: Painter | None = field(default=None, repr=False, compare=False)
    size: tuple[int, int] = (WIDE, 300)
    """Size of the drawing in CSS pixels (of the wide version, if there are two)."""
    narrow_height: int = 0
    """Height of the version for phones and for a paper's column; 0 means the height in `size`."""
    tidy: Callable[[], list[tuple[Any, ...]]] | None = field(default=None, repr=False, compare=False)
    """Function that builds the rows of `data` if drawn values differ from the actual ones: names instead of numbers,
    custom scales."""

    @property
    def data(self) -> pd.DataFrame:
        """Drawn values, one per row; see servesim.reports.data."""
        from servesim.reports.data import frame_of

        return frame_of(self)

    def to_svg(self) -> str:
        """Return the figure as the text of an SVG file, in light colors."""
        return standalone(self)

    _repr_svg_ = to_svg  # for notebooks

    def to_matplotlib(self, width: float | None = None) -> Any:
        """Return the figure as a matplotlib Figure, in light colors, to be modified or saved in other formats. With
        `width` in inches, it is laid out for a paper (servesim.reports.paper)."""
        from servesim.reports.paper import as_matplotlib, on_paper

        return as_matplotlib(self) if width is None else on_paper(self, width)

    def save(self, path: str | Path, width: float | None = None) -> None:
        """Write the figure as .svg, or in any other matplotlib format (.png, .pdf).

        With `width` in inches, it is laid out for a paper (3.3 for one column, 7 for two): legible text, markers and
        hatches that distinguish series in gray, and no title (the caption has it). Raise UserError for a width outside
        2 to 20.
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
    """Draw a figure across the page, and a second version for phones; `heights` gives both heights in CSS pixels. If
    the display is known, `narrow` selects one: true for the phone version, false for the wide one."""
    if narrow is not None:
        width, height = (NARROW, heights[1]) if narrow else (WIDE, heights[0])
        svg = _svg(name, title, alt, paint, width, height)
        return Drawing(name, title, alt, svg, caption, wide=True, paint=paint, size=(width, height), **more)
    both = {"wide": (WIDE, heights[0]), "narrow": (NARROW, heights[1])}
    versions = _versions(name, title, alt, paint, both)
    sizes: dict[str, Any] = {"size": (WIDE, heights[0]), "narrow_height": heights[1]}
    return Drawing(name, title, alt, versions, caption, wide=True, paint=paint, **sizes, **more)


def half(name: str, title: str, alt: str, paint: Painter, height: int = 290, caption: str = "", **more: Any) -> Drawing:
    """Draw a figure half as wide as the page, and a second version for phones."""
    svg = _versions(name, title, alt, paint, {"half": (HALF, height), "slim": (NARROW, height)})
    return Drawing(name, title, alt, svg, caption, paint=paint, size=(HALF, height), **more)


def _versions(name: str, title: str, alt: str, paint: Painter, sizes: dict[str, tuple[int, int]]) -> Markup:
    """Return the versions of a figure, by kind, of which the stylesheet shows the one that fits."""
    return Markup("").join(
        Markup('<div class="on-{0}">{1}</div>').format(kind, _svg(f"{name}-{kind}", title, alt, paint, *size))
        for kind, size in sizes.items()
    )


def _svg(name: str, title: str, alt: str, paint: Painter, width: int, height: int) -> Markup:
    try:
        import matplotlib
    except ValueError as error:  # from MPLBACKEND, which is read on import
        raise UserError(f"no figure can be drawn: matplotlib: {error}") from error
    from servesim.reports.canvas import Canvas

    style: dict[Any, Any] = {**matplotlib.rcParamsDefault, **STYLE, "svg.hashsalt": name}
    with matplotlib.rc_context(style):
        canvas = Canvas(width, height)
        paint(canvas.figure, width < HALF)
        legible(canvas.figure, final=True)
        text = canvas.svg()
        meaning = json.dumps(_axes(canvas.figure, height), separators=(",", ":"), ensure_ascii=False)
    return Markup(_inline(text, name, title, alt, (width, height), meaning))


def _axes(figure: Any, height: int) -> list[dict[str, Any]]:
    """Return, for the page's script, how to map the pixels of each axes to values: the box as [left, top, right,
    bottom], and the x and y axes."""
    found = []
    for axes in figure.axes:
        x0, y0, x1, y1 = (72 * float(v) / figure.dpi for v in axes.get_window_extent().extents)
        pixels = [round(v, 1) for v in (x0, height - y1, x1, height - y0)]
        meaning = {"x": _axis(axes.xaxis, shared_label(axes)), "y": _axis(axes.yaxis, axes.get_ylabel())}
        found.append({"box": pixels, "title": axes.get_title("left"), **meaning})
    return found


def shared_label(axes: Any) -> str:
    """Return the label of the x axis; of panels that share an axis, the lowest has it."""
    return next((one.get_xlabel() for one in axes.get_shared_x_axes().get_siblings(axes) if one.get_xlabel()), "")


def _axis(axis: Any, words: str) -> dict[str, Any] | None:
    """Return the scale, limits, unit (the axis's gid) and label of an axis, or None if it has names instead of
    numbers."""
    from matplotlib.ticker import FixedFormatter

    if axis.get_scale() not in ("linear", "log") or isinstance(axis.get_major_formatter(), FixedFormatter):
        return None
    start, end = (float(f"{limit:.7g}") for limit in axis.get_view_interval())
    return {"scale": axis.get_scale(), "from": start, "to": end, "unit": axis.get_gid() or "plain", "label": words}


def _inline(text: str, name: str, title: str, alt: str, size: tuple[int, int], meaning: str) -> str:
    """Return the SVG element alone, without the parts that only a file needs, and with its text alternative and the
    meaning of its axes added."""
    width, height = size
    body = text[text.index("<svg") :]
    body = body[body.index(">") + 1 :].strip()
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.S)
    body = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", body, flags=re.S)
    body = re.sub(r'<g id="axes_\d+"', '<g class="axes"', body)
    body = re.sub(r'<g id="[^"]*"', "<g", body)  # layer names: unused, and not unique on a page
    body = re.sub(r"<!--.*?-->\s*", "", body, flags=re.S)
    for before in ('id="', 'href="#', "url(#"):
        body = body.replace(before, f"{before}{name}-")
    body = _shorter(body)
    body = re.sub(r"font-family: [^;\"]*;? ?", "", body).replace("font-weight: 700", "font-weight: 600")
    names = {stand_in: f"var(--{colour})" for colour, stand_in in INK.items()}
    body = re.sub("|".join(names), lambda found: names[found[0]], body)
    body = "\n".join(line for spaced in body.split("\n") if (line := spaced.strip()))
    head = (
        f'<svg role="img" aria-labelledby="{name}-t {name}-d" viewBox="0 0 {width} {height}" '
        f'xmlns:xlink="http://www.w3.org/1999/xlink" style="max-width: {int(width * 1.2)}px" '
        f'data-axes="{escape(meaning)}">'
        f'<title id="{name}-t">{escape(title)}</title><desc id="{name}-d">{escape(alt)}</desc>'
    )
    return f"{head}\n{body}"


def standalone(drawing: Drawing) -> str:
    """Return a drawing as a separate file, with title and legend above it, in the colors of the light page; of two
    versions, use the wide one."""
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


def _shorter(body: str) -> str:
    """Shorten the tags of an SVG, not its text: round numbers to tenths of a pixel, and put each tag on one line."""
    parts = re.split("(<[^>]+>)", body)
    tags = " ".join("\0".join(parts[1::2]).split())
    parts[1::2] = re.sub(r"(?<=\d\.\d)\d+", "", tags).split("\0")
    return "".join(parts)
