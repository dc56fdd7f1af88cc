"""Figures in matplotlib: as on the page, or for a paper, with series that can also be distinguished in gray.

In a paper, a figure has the page's layout at `SCALE` of its size, so that its text is 7 to 8 pt at any width. A series
keeps its marker and dash, or its hatch, in every panel; panels with one series each need none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servesim.errors import UserError
from servesim.reports.ink import HALF, SERIES, STYLE, head_of, light_ink, painted
from servesim.reports.legible import legible, thin
from servesim.reports.words import wrapped

if TYPE_CHECKING:
    from servesim.reports.svg import Drawing

SCALE = 0.68
"""Ratio of inches on paper to inches on the page: text of 11.5 becomes 7.8 pt."""
LEAST, MOST = 2.0, 20.0
"""Minimum and maximum width of a legible figure, in inches."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h")
DASHES: tuple[Any, ...] = (
    "-", (0, (6, 2)), (0, (1, 1.4)), (0, (6, 1.5, 1, 1.5)), (0, (3, 1.2)), (0, (8, 1.5, 1, 1.5, 1, 1.5)), (0, (2, 3)),
    (0, (10, 3)),
)  # fmt: skip
HATCHES = ("", "////", "....", "\\\\\\\\", "xxxx", "----", "||||", "oooo")
DPI = 300
"""Pixels per inch at which text is measured and pixels are written; fewer would make hinted text narrower."""
MARKED = 7
"""Number of markers along a line."""
SHORTEST, LINES = 8, 8
"""Characters in a line of the legend that fit in any figure, and maximum number of lines of an entry."""


def as_matplotlib(drawing: Drawing) -> Any:
    """Return a drawing as a matplotlib Figure."""
    from matplotlib.patches import Patch

    (width, height), head = drawing.size, head_of(drawing)
    with light_ink() as light:
        figure = painted(drawing, width, height, narrow=False)
        legible(figure)
        share = height / (height + head)
        figure.set_size_inches(width / 72, (height + head) / 72)
        for axes in figure.axes:  # room for title and legend
            box = axes.get_position()
            axes.set_position((box.x0, box.y0 * share, box.width, box.height * share))
        figure.text(12 / width, 1 - 18 / (height + head), drawing.title, fontsize=13, weight="bold", va="center")
        patches = [Patch(color=light[colour], label=words) for colour, words in drawing.legend]
        if patches:
            at = (4 / width, 1 - 28 / (height + head))
            figure.legend(handles=patches, loc="upper left", bbox_to_anchor=at, handlelength=0.8, handleheight=0.8)
    return figure


def on_paper(drawing: Drawing, width: float) -> Any:
    """Return a drawing as a matplotlib Figure `width` inches wide, without its title and with its legend above it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    if not LEAST <= width <= MOST:
        raise UserError(f"width {width:g}: must be from {LEAST:g} to {MOST:g} inches, such as 3.3 for a column")
    pixels = round(width * 72 / SCALE)
    narrow = pixels < HALF
    height = (narrow and drawing.narrow_height) or drawing.size[1]
    with light_ink() as light:
        figure = painted(drawing, pixels, height, narrow)
        FigureCanvasAgg(figure)
        figure.set_dpi(DPI)
        shrunk(figure)
        inches = height * SCALE / 72
        figure.set_size_inches(width, inches)
        in_grey(figure, {light[name]: i for i, name in enumerate(SERIES)})
        room = _legend(figure, [(light[colour], words) for colour, words in drawing.legend], width)
        figure.set_size_inches(width, inches + room)
        _fit(figure, 1 - room / (inches + room))
    return figure


def write(figure: Any, path: Path, name: str) -> None:
    """Write a figure in the format of the path's suffix, with reproducible bytes; raise UserError for other formats and
    for a path that cannot be written."""
    import matplotlib

    known = figure.canvas.get_supported_filetypes()
    suffix = path.suffix.removeprefix(".").lower()
    if suffix not in known:
        raise UserError(f"{path}: the name must end in one of {', '.join('.' + one for one in sorted(known))}")
    fonts: dict[Any, Any] = {key: STYLE[key] for key in ("pdf.fonttype", "ps.fonttype", "svg.fonttype")}
    made = {"Creator": "servesim"}
    undated: dict[str, Any] = {"pdf": {**made, "CreationDate": None}, "svg": {**made, "Date": None}}
    undated |= {"png": {"Software": "servesim"}, "eps": made, "ps": made}
    with matplotlib.rc_context({**fonts, "svg.hashsalt": name, "hatch.linewidth": 0.5}):
        try:
            figure.savefig(path, dpi=DPI if figure.get_figwidth() <= 8 else 144, metadata=undated.get(suffix))
        except OSError as error:
            raise UserError(f"{path}: cannot be written: {error.strerror}") from error


def shrunk(figure: Any) -> None:
    """Shrink everything measured in points by `SCALE`."""
    from matplotlib.collections import Collection, PathCollection
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.text import Annotation, Text

    def all_of(kind: type[Any]) -> list[Any]:
        found: list[Any] = figure.findobj(lambda one: isinstance(one, kind))
        return found

    for text in all_of(Text):
        text.set_fontsize(text.get_fontsize() * SCALE)
    for note in all_of(Annotation):
        if note.anncoords == "offset points":
            note.xyann = tuple(SCALE * v for v in note.xyann)
    for line in all_of(Line2D):
        keys = ("linewidth", "markersize", "markeredgewidth")
        line.set(**{key: SCALE * getattr(line, f"get_{key}")() for key in keys})
    for patch in all_of(Patch):
        patch.set_linewidth(SCALE * patch.get_linewidth())
    for drawn in all_of(Collection):
        drawn.set_linewidth([SCALE * width for width in drawn.get_linewidths()])
    for dots in all_of(PathCollection):
        dots.set_sizes([SCALE**2 * size for size in dots.get_sizes()])
    for axes in figure.axes:
        for axis, key in ((axes.xaxis, "xtick"), (axes.yaxis, "ytick")):
            axis.labelpad *= SCALE
            axis.set_tick_params(
                "both", labelsize=SCALE * STYLE[f"{key}.labelsize"], length=SCALE * STYLE[f"{key}.major.size"],
                pad=SCALE * (5 if key == "xtick" else 3.5), width=SCALE,
            )  # fmt: skip


def in_grey(figure: Any, series: Mapping[str, int]) -> None:
    """Give series that share a panel distinct markers and dashes, or hatches; `series` maps colors to indices in
    SERIES."""
    lines, areas = [list(_lines(axes, series)) for axes in figure.axes], [list(_areas(a, series)) for a in figure.axes]
    if any(len({place for _, place in found}) > 1 for found in lines):
        for line, place in (pair for found in lines for pair in found):
            points = len(line.get_xdata())
            if line.get_marker() in ("None", None, ""):
                step = max(points // MARKED, 1)
                line.set(marker=MARKERS[place], markevery=((place * step // 8) % step, step), markersize=3.2)
            elif line.get_marker() == "o" and line.get_markerfacecolor() != "none":  # a ring around a marker
                line.set_marker(MARKERS[place])
            if points > 1 and line.get_linestyle() not in ("None", ""):
                line.set_linestyle(DASHES[place])
    if any(len({place for _, place in found}) > 1 for found in areas):
        order = sorted({place for found in areas for _, place in found})
        for area, place in (pair for found in areas for pair in found):
            if hatch := HATCHES[order.index(place)]:
                area.set(hatch=hatch, edgecolor="white")
        for text in (text for axes in figure.axes for text in axes.texts if _hex(text.get_color()) == "#ffffff"):
            text.set(color="black", bbox={"facecolor": "white", "linewidth": 0, "pad": 1})  # written on hatched bars


def _lines(axes: Any, series: Mapping[str, int]) -> Iterator[tuple[Any, int]]:
    """Yield the lines and dots of series with their indices in SERIES; a line across the panel is a limit, not a
    series."""
    for line in axes.lines:
        own = line.get_transform() == axes.transData
        found = [_hex(c) for c in (line.get_color(), line.get_markeredgecolor()) if _hex(c) in series]
        if own and found:
            yield line, series[found[0]]


def _areas(axes: Any, series: Mapping[str, int]) -> Iterator[tuple[Any, int]]:
    """Yield the bars and filled areas of series with their indices in SERIES, except for the tint below a line of the
    same color."""
    from matplotlib.collections import PathCollection

    tints = {place for _, place in _lines(axes, series)}
    for patch in axes.patches:
        if (colour := _hex(patch.get_facecolor())) in series:
            yield patch, series[colour]
    for area in axes.collections:
        faces = area.get_facecolor()
        if isinstance(area, PathCollection) or len(faces) != 1:  # dots
            continue
        if (colour := _hex(faces[0])) in series and series[colour] not in tints:
            yield area, series[colour]


def _hex(colour: Any) -> str:
    from matplotlib.colors import to_hex

    try:
        return to_hex(colour)
    except ValueError:
        return ""


def _legend(figure: Any, entries: Sequence[tuple[str, str]], width: float) -> float:
    """Place a legend above the panels in as few rows as fit, with long entries in several lines; return its height in
    inches."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    if not entries:
        return 0.0
    handles: list[Any] = []
    for colour, words in entries:
        line, area = _drawn_in(figure, colour)
        if line is not None:
            style = {key: getattr(line, f"get_{key}")() for key in ("marker", "linestyle", "linewidth")}
            handles.append(Line2D([], [], color=colour, label=words, markersize=3.2, **style))
        elif area is not None:
            hatch = area.get_hatch()
            handles.append(Patch(facecolor=colour, edgecolor="white", linewidth=0, hatch=hatch, label=words))
        else:  # a sentence on what is not drawn
            handles.append(Line2D([], [], linestyle="", label=words))
    most = max(len(words) for _, words in entries)
    for columns in [*range(len(handles), 0, -1), *[1] * (most - SHORTEST)]:
        if columns == 1:
            for handle, (_, words) in zip(handles, entries, strict=True):
                handle.set_label(wrapped(words, most, LINES))
            most -= 1
        legend = figure.legend(
            handles=handles, loc="upper left", bbox_to_anchor=(0, 1), ncols=columns, fontsize=7.2, handlelength=2.4,
            columnspacing=1.2, borderpad=0.2, borderaxespad=0.2, handletextpad=0.5, labelspacing=0.3,
        )  # fmt: skip
        box = legend.get_window_extent(figure.canvas.get_renderer())
        if box.width <= width * figure.dpi:
            return float(box.height / figure.dpi) + 0.04
        legend.remove()
    raise AssertionError


def _drawn_in(figure: Any, colour: str) -> tuple[Any, Any]:
    """Return the line, and the bar or area, with a given color; if there are several such lines, return the longest,
    since the others may be dots on it."""
    lines = [line for axes in figure.axes for line, _ in _lines(axes, {colour: 0})]
    areas = [area for axes in figure.axes for area, _ in _areas(axes, {colour: 0})]
    return max(lines, key=lambda line: len(line.get_xdata()), default=None), next(iter(areas), None)


def _fit(figure: Any, top: float) -> None:
    """Move the edges of the panels so that they and their labels fill the figure up to the given share of its
    height."""
    edge = 0.02 / figure.get_figwidth()
    for _ in range(8):  # a title follows its panel's left edge, so each pass leaves a remainder
        renderer = figure.canvas.get_renderer()
        drawn = [axes.get_tightbbox(renderer).transformed(figure.transFigure.inverted()) for axes in figure.axes]
        boxes, moved = [axes.get_position() for axes in figure.axes], 0.0
        for low, high, end in (("x0", "x1", 1 - edge), ("y0", "y1", top - edge)):
            begin, stop = min(getattr(b, low) for b in boxes), max(getattr(b, high) for b in boxes)
            new_begin = begin + edge - min(getattr(d, low) for d in drawn)
            new_stop = stop + end - max(getattr(d, high) for d in drawn)
            moved = max(moved, abs(new_begin - begin), abs(new_stop - stop))
            by = (new_stop - new_begin) / (stop - begin)
            for box in boxes:
                for key in (low, high):
                    _move(box, key, new_begin + (getattr(box, key) - begin) * by)
        for axes, box in zip(figure.axes, boxes, strict=True):
            axes.set_position(box)
        if moved < 0.2 / 72 / figure.get_figwidth():
            break
    thin(figure)
    for axes in figure.axes if len({box.x0 for box in boxes}) > 1 else ():
        _within(axes)


def _within(axes: Any) -> None:
    """Keep the first and last labels of the x axis within the panel, clear of the next panel's."""
    panel = axes.get_window_extent()
    for label in axes.get_xticklabels():
        box = label.get_window_extent()
        if box.x0 < panel.x0 <= box.x1:
            label.set_horizontalalignment("left")
        elif box.x0 <= panel.x1 < box.x1:
            label.set_horizontalalignment("right")


def _move(box: Any, key: str, value: float) -> None:
    """Set one edge of a box: x0 and y0 are the first point, x1 and y1 the second."""
    points = box.get_points()
    points[int(key[1])][0 if key[0] == "x" else 1] = value
    box.set_points(points)
