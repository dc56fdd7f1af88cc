"""Page of `servesim play`: KV memory as a grid of blocks, colored by request, played back over the run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from servesim.reports.figures.axes import clock
from servesim.reports.ink import INK, SERIES
from servesim.reports.page import Page
from servesim.reports.playback import CACHED, FREE, Cells, Playback
from servesim.reports.prefix_tree import Tree, tree_of
from servesim.reports.svg import Drawing, wide
from servesim.reports.words import count, gpu_of, name_of, percent, seconds

COLOURS = tuple(name for name in SERIES if name != "slate")
"""Colors of requests, used in rotation; slate is for blocks that no request holds but that a later one can reuse."""
COLUMNS, SIDE = 32, 26
"""Number of cells in a row, and the side of a cell in CSS pixels."""
GUTTER = 8
"""Space between two columns of a tree in CSS pixels."""


def playback_page(plays: Sequence[Playback]) -> Page:
    """Return the page of one or several runs, which share a clock."""
    run, scenario = plays[0].run, plays[0].run.scenario
    end_s = max(float(each.run.end_ns - each.run.begin_ns) for each in plays) / 1e9
    panels = [_panel(i, each, end_s) for i, each in enumerate(plays)]
    return Page(
        "playback",
        "memory played back",
        f"KV memory of {name_of(scenario.model)} on {gpu_of(scenario.gpu)}, block by block",
        f"{len(run.done):,} requests, {count(len(plays[0].frames[0].cells))} blocks of {plays[0].cell_tokens} tokens",
        values={
            "answer": answer(plays),
            "panels": panels,
            "end_s": f"{end_s:.6f}",
            "notes": [
                f"{each.label}: the last {each.steps_left_out:,} steps are not drawn"
                for each in plays
                if each.steps_left_out
            ],
        },
        scripts=("page.js", "zoom.js", "memory.js"),
    )


def answer(plays: Sequence[Playback]) -> str:
    """Return a sentence with each run's memory use and duration."""
    told = []
    for each in plays:
        kv, batch = each.run.summary["kv"], int(each.run.batch.max(initial=0))
        share = percent(kv["used_share"])
        took = seconds((each.run.end_ns - each.run.begin_ns) / 1e9)
        told.append(f"{each.label}: {share} of the memory filled on average, at most {batch} at once, done in {took}")
    return "; ".join(told) + "."


def _panel(i: int, play: Playback, end_s: float) -> dict[str, Any]:
    at = play.fullest
    frames = [_told(play, k) for k in range(len(play.frames))]
    tree = tree_of(play)
    return {
        "name": f"memory-{i}",
        "title": play.label,
        "svg": grid(f"memory-{i}", play, at),
        "words": frames[at]["words"],
        "tree": branches(f"memory-{i}-tree", play, at, tree) if tree is not None else None,
        "data": Markup(_json(_coded(play, frames) | _coded_tree(tree))),
        "legend": _legend(play),
        "reserves": any((frame.cells[frame.cells > CACHED] % 2).any() for frame in play.frames),
        "beside": beside(f"beside-{i}", play, end_s),
    }


def _legend(play: Playback) -> tuple[tuple[str, str], ...]:
    """Return the (color, meaning) pairs of the grid."""
    found: tuple[tuple[str, str], ...] = (("blue", "in use by the request with this number"),)
    if any((frame.cells == CACHED).any() for frame in play.frames):
        found += (("slate", "cached: not in use, but available to prompts with the same content"),)
    return found


def _told(play: Playback, k: int) -> dict[str, Any]:
    """Return the time and the text of a frame."""
    frame, run = play.frames[k], play.run
    held = np.unique(frame.cells[frame.cells > CACHED] // 2)
    reserved = int((frame.cells[frame.cells > CACHED] % 2).sum())
    filled = int((frame.cells > CACHED).sum()) - reserved
    arrived, scheduled = run.requests["arrival_ns"], run.requests["scheduled_ns"]
    waiting = int(((arrived <= frame.ns) & ((scheduled < 0) | (scheduled > frame.ns))).sum())
    waiting -= int(((arrived <= frame.ns) & (scheduled < 0) & (run.requests["finished_ns"] <= frame.ns)).sum())
    words = [f"{len(held)} request{'s' * (len(held) != 1)} in memory", f"{waiting} waiting", f"{filled} blocks filled"]
    if reserved:
        words.append(f"{reserved} reserved but empty")
    if cached := int((frame.cells == CACHED).sum()):
        words.append(f"{cached} cached")
    words.append(f"{int((frame.cells == FREE).sum())} free")
    return {"s": (frame.ns - run.begin_ns) / 1e9, "words": ", ".join(words)}


def _coded(play: Playback, frames: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the frames as changes from one to the next: [cell, value, cell, value, ...]."""
    changes: list[list[int]] = []
    before: Cells = np.zeros_like(play.frames[0].cells)
    for frame in play.frames:
        changed = np.flatnonzero(frame.cells != before)
        changes.append(np.stack([changed, frame.cells[changed]], axis=1).ravel().tolist())
        before = frame.cells
    return {
        "colours": COLOURS,
        "at": play.fullest,
        "s": [round(told["s"], 6) for told in frames],
        "words": [told["words"] for told in frames],
        "changes": changes,
    }


def _coded_tree(tree: Tree | None) -> dict[str, Any]:
    """Return the links that change in each frame: [cell, previous cell, column, cell, ...]."""
    if tree is None:
        return {}
    return {"links": [[n for cell, link in changes.items() for n in (cell, *link)] for changes in tree.links]}


def grid(name: str, play: Playback, at: int) -> Markup:
    """Return one frame as SVG: one square per cell, in rows of COLUMNS."""
    cells = play.frames[at].cells
    rows = -(-len(cells) // COLUMNS)
    parts = [
        f'<svg id="{name}" class="memory" role="img" aria-labelledby="{name}-t {name}-words" '
        f'viewBox="0 0 {COLUMNS * SIDE} {rows * SIDE}" style="min-width: {COLUMNS * SIDE}px">'
        f'<title id="{name}-t">Blocks of KV memory</title>',
        *(_cell(value, i % COLUMNS, i // COLUMNS) for i, value in enumerate(cells.tolist())),
    ]
    return Markup("\n".join(parts) + "</svg>")


def branches(name: str, play: Playback, at: int, tree: Tree) -> Markup:
    """Return one frame as an SVG tree: the cells of `grid`, each placed after the cell of the previous block in its
    sequence."""
    width = max(tree.columns * (SIDE + GUTTER), COLUMNS * SIDE)
    places = tree.at(at, play.frames[at].cells)
    parts = [
        f'<svg id="{name}" class="memory tree" role="img" aria-labelledby="{name}-t" '
        f'viewBox="0 0 {width} {tree.rows * SIDE}" style="min-width: {width}px">'
        f'<title id="{name}-t">Blocks of KV memory, each behind the '
        "block before it in its sequence</title>"
    ]
    for cell, value in enumerate(play.frames[at].cells.tolist()):
        column, row, parent_row = places.get(cell, (0, 0, 0))
        stem = f'<path d="{_stem(parent_row, row)}"/>'
        parts.append(_cell(value if cell in places else FREE, column * (1 + GUTTER / SIDE), row, stem))
    return Markup("\n".join(parts) + "</svg>")


def _stem(parent_row: int, row: int) -> str:
    """Return the line from a block's left edge to its predecessor in another row; memory.js draws the same line."""
    if parent_row == row:
        return ""
    return f"M1 {SIDE // 2}H-{GUTTER // 2}V{(parent_row - row) * SIDE + SIDE // 2}H-{GUTTER + 1}"


def _cell(value: int, column: float, row: int, stem: str = "") -> str:
    text = str(value // 2 - 1) if value > CACHED else ""
    return (
        f'<g class="{kind(value)}" transform="translate({column * SIDE:g} {row * SIDE})">{stem}<rect x="1" y="1" '
        f'width="{SIDE - 2}" height="{SIDE - 2}" rx="4"/><text x="{SIDE / 2:g}" y="{SIDE / 2 + 4:g}">{text}</text></g>'
    )


def kind(value: int) -> str:
    """Return the CSS classes of a cell."""
    if value <= CACHED:
        return "free" if value == FREE else "cached"
    colour = COLOURS[(value // 2 - 1) % len(COLOURS)]
    return f"held {colour}" + (" reserved" if value % 2 else "")


def beside(name: str, play: Playback, end_s: float) -> Drawing | None:
    """Draw when each request waited and when it was in memory, to show which requests ran together. `end_s` is the end
    of the axis, the same for all runs of a page."""
    run = play.run
    if not run.done.any():
        return None
    rows = np.argsort(run.requests["arrival_ns"], kind="stable")
    rows = rows[run.done[rows]]
    times = {key: (run.requests[key] - run.begin_ns) / 1e9 for key in ("arrival_ns", "scheduled_ns", "last_token_ns")}
    unit, words = clock(end_s)

    def paint(figure: Any, narrow: bool) -> None:
        axes = figure.subplots()
        for y, i in enumerate(rows):
            arrival, begin, end = (times[key][i] / unit for key in times)
            colour = COLOURS[int(run.requests["row"][i]) % len(COLOURS)]
            axes.plot([arrival, begin], [y, y], color=INK["muted"], linewidth=1)
            axes.barh(y, end - begin, left=begin, height=0.7, color=INK[colour], linewidth=0, alpha=0.8)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlim(0, max(end_s, 1e-9) / unit)
        step = max(len(rows) // 8, 1)
        axes.set_yticks(range(0, len(rows), step), [str(run.requests["row"][i]) for i in rows[::step]])
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x", visible=True)
        axes.set_xlabel(f"{words} since the first arrival")
        figure.subplots_adjust(left=0.135 if narrow else 0.05, right=0.985, top=0.98, bottom=44 / height)

    height = 60 + 8 * min(len(rows), 60)
    alt = f"{play.label}: {len(rows)} requests as bars, one below the other, each while it was in memory."
    return wide(
        name,
        "Which requests ran together",
        alt,
        paint,
        (height, height),
        "A line is time spent waiting, and a bar is time in memory. Point at a request to see the requests that were "
        "in memory at the same time.",
    )


def _json(value: Any) -> str:
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c")
