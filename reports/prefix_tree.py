"""Tree of a prefix cache: KV memory blocks, each after the previous block in its sequence.

A column is a position in the sequence, and a row is a branch: the first successor is in the same row, and each further
successor is in a separate row below. memory.js draws the same tree from the links of the frames.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from servesim.reports.playback import FREE, Cells, Frame, Playback


class Link(NamedTuple):
    """Previous cell of a cell (-1 if there is none or its content has changed since), and the cell's column."""

    before: int
    column: int


class Place(NamedTuple):
    """Position of a cell, and the row of its predecessor (its own row if it has none)."""

    column: int
    row: int
    parent_row: int


class Tree(NamedTuple):
    """Tree as it grows: the links that change in each frame, and the maximum number of rows and columns."""

    links: list[dict[int, Link]]
    rows: int
    columns: int

    def at(self, k: int, cells: Cells) -> dict[int, Place]:
        """Return the positions of the cells in frame `k`, whose values are `cells`."""
        links: dict[int, Link] = {}
        for changes in self.links[: k + 1]:
            _change(links, changes)
        return places_of(links, cells)


def tree_of(play: Playback) -> Tree | None:
    """Return the tree of a run, or None if the allocator keeps no prefixes or nothing ever branches."""
    links: dict[int, Link] = {}
    told, rows, columns, parts = [], 0, 0, False
    num_cells = len(play.frames[0].cells)
    before, column = np.full((2, num_cells), -1)
    for frame in play.frames:
        told.append(_changes(links, frame))
        _change(links, told[-1])
        for cell, link in told[-1].items():
            before[cell], column[cell] = link
        held = (frame.cells != FREE) & (column >= 0)
        behind = held & (before >= 0) & held[before]
        children = np.bincount(before[behind], minlength=num_cells)
        rows = max(rows, int((held & (children == 0)).sum()))  # each row ends with a cell without a successor
        columns = max(columns, 1 + int(column[held].max(initial=-1)))
        parts = parts or bool((children > 1).any())
    return Tree(told, rows, columns) if parts else None


def _changes(links: dict[int, Link], frame: Frame) -> dict[int, Link]:
    """Return the links of a frame that differ from earlier ones: cells with new content, and the successors of their
    old content."""
    found = {cell: Link(-1, link.column) for cell, link in links.items() if link.before in frame.links}
    for cell, before in frame.links.items():
        found.pop(cell, None)
        ahead = found.get(before) or links.get(before)
        found[cell] = Link(before, ahead.column + 1 if ahead is not None else 0)
    return found


def _change(links: dict[int, Link], changes: dict[int, Link]) -> None:
    for cell, link in changes.items():
        links.pop(cell, None)  # newest last
        links[cell] = link


def places_of(links: dict[int, Link], cells: Cells) -> dict[int, Place]:
    """Return the positions of the cells that are not free, stacked in the order of their links."""
    children: dict[int, list[int]] = {}
    for cell, link in links.items():
        if cells[cell] != FREE:
            before = link.before if link.before >= 0 and cells[link.before] != FREE else -1
            children.setdefault(before, []).append(cell)
    found: dict[int, Place] = {}
    rows = 0
    left = children.get(-1, [])[::-1]
    while left:
        cell = left.pop()
        before, column = links[cell]
        parent = found.get(before)
        row = parent.row if parent is not None and children[before][0] == cell else rows
        rows = max(rows, row + 1)
        found[cell] = Place(column, row, parent.row if parent is not None else row)
        left += children.get(cell, [])[::-1]
    return found
