"""Content of KV memory, step by step: a small run in reference mode, observed block by block.

An allocator can be observed if it has `tables`: the memory units (numbers from 0 to `num_blocks`, each of `block_size`
tokens) of every request, in token order. A prefix cache also needs `cached()`: lists of the units that can be found by
their content.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servesim.contracts.kv import KVAllocator
from servesim.contracts.plan import Plan
from servesim.contracts.request import Request
from servesim.errors import UserError
from servesim.reports.run import Run
from servesim.run.setup import Setup
from servesim.run.simulate import simulate

MOST_CELLS = 2048
MOST_REQUESTS = 400
MOST_STEPS = 3000
FREE, CACHED = 0, 1
"""Values of free cells, and of cells that no request holds but that can be found by their content. Cells of request i
have 2 (i + 1), or 2 (i + 1) + 1 if nothing is computed yet."""
Cells = NDArray[np.int32]


@dataclass(frozen=True)
class Frame:
    """Memory after a step is planned, at `ns` of the run's clock."""

    ns: int
    cells: Cells
    links: dict[int, int] = field(default_factory=dict)
    """Previous cell in the sequence (-1: none) for each prefix-cache cell whose content has changed, in sequence
    order."""


@dataclass
class Playback:
    """Frames of a run, in order; the first is empty memory."""

    label: str
    run: Run
    cell_tokens: int
    frames: list[Frame]
    steps_left_out: int = 0

    @property
    def fullest(self) -> int:
        """Index of the frame in which requests hold the most cells."""
        return int(np.argmax([(frame.cells > CACHED).sum() for frame in self.frames]))


def play(settings: Mapping[str, Any], label: str = "") -> Playback:
    """Run a scenario and record its memory. Raise UserError if the memory is too large to draw (MOST_CELLS,
    MOST_REQUESTS), if there are several replicas, or if the allocator has no `tables`."""
    watch = Watch()
    result = simulate(**{**settings, "mode": "reference"}, conclude=False, on_ready=watch.attach)
    run = Run(result)
    planned = dict(zip(run.steps["step"].tolist(), run.steps["planned_ns"].tolist(), strict=True))
    empty = Frame(run.begin_ns, np.zeros(watch.num_cells, np.int32))
    frames = [empty, *(Frame(planned[step], cells, links) for step, cells, links in watch.seen)]
    frames.append(Frame(run.end_ns, watch.cells()))
    return Playback(label or result.scenario.kv["name"], run, watch.cell_tokens, frames, watch.left_out)


class Watch:
    """Observer that records the memory of a run's only replica after every plan."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, Cells, dict[int, int]]] = []
        """Recorded tuples of (step, cells, links)."""
        self._lengths: dict[Request, int] = {}
        self._before: dict[int, int] = {}  # previous cell, by cell
        self.left_out = 0
        self.num_cells = self.cell_tokens = self._first = self._units = 0

    def attach(self, setup: Setup) -> None:
        """Start observing, or raise UserError."""
        if len(setup.cores) != 1:
            raise UserError(f"play: can draw only one replica, not {len(setup.cores)}")
        if len(setup.trace) > MOST_REQUESTS:
            raise UserError(
                f"play: {len(setup.trace):,} requests, but at most {MOST_REQUESTS} can be drawn (try --requests 40)"
            )
        core = setup.cores[0]
        self._kv: KVAllocator = core.kv
        if not hasattr(self._kv, "tables"):
            raise UserError(f"play: kv {self._kv.name} does not report which blocks a request uses (no `tables`)")
        self.cell_tokens = max(self._kv.block_size, setup.scenario.engine.block_size)
        self._units = self.cell_tokens // self._kv.block_size
        self._first = self._kv.num_blocks - self._kv.capacity_tokens // self._kv.block_size  # the null block
        self.num_cells = -(-(self._kv.num_blocks - self._first) // self._units)
        if self.num_cells > MOST_CELLS:
            raise UserError(
                f"play: the memory has {self.num_cells:,} blocks, but at most {MOST_CELLS:,} can be drawn; choose a "
                "smaller memory (--engine.num-gpu-blocks 160 --engine.max-model-len 1024)"
            )
        core.on_plan = self._planned

    def _planned(self, step: int, plan: Plan) -> None:
        if len(self.seen) < MOST_STEPS:
            self.seen.append((step, self.cells(), self._links()))
        else:
            self.left_out += 1

    def cells(self) -> Cells:
        """Return the current content of each cell."""
        found = np.zeros(self.num_cells, np.int32)
        for unit in chain.from_iterable(getattr(self._kv, "cached", list)()):
            found[(unit - self._first) // self._units] = CACHED
        tables: dict[Request, Any] = self._kv.tables  # type: ignore[attr-defined]
        for request in sorted(tables, key=lambda one: -one.row):  # the first request owns a shared cell
            self._mark(found, request, tables[request])
        return found

    def _links(self) -> dict[int, int]:
        """Return the predecessor of each unit that is new in a block table."""
        if self._units > 1 or not hasattr(self._kv, "cached"):
            return {}
        tables: dict[Request, Any] = self._kv.tables  # type: ignore[attr-defined]
        found: dict[int, int] = {}
        lengths, self._lengths = self._lengths, {}
        past = self.seen[-1][1] if self.seen else np.zeros(self.num_cells, np.int32)
        for request in sorted(tables, key=lambda one: one.row):
            table = tables[request]
            if table and isinstance(table[0], list):
                return {}  # layer groups have separate blocks
            self._lengths[request] = len(table)
            for i in range(min(lengths.get(request, 0), len(table)), len(table)):
                cell, before = table[i] - self._first, table[i - 1] - self._first if i else -1
                if self._before.get(cell) != before or past[cell] == FREE:
                    self._before[cell] = found[cell] = before
        return found

    def _mark(self, found: Cells, request: Request, table: Any) -> None:
        groups = table if table and isinstance(table[0], list) else [table]
        filled = -(-request.num_computed_tokens // self._kv.block_size)
        for units in groups:
            cells = (np.asarray(units, np.int64) - self._first) // self._units
            cells = cells[(cells >= 0) & (cells < self.num_cells)]
            found[cells] = 2 * (request.row + 1) + 1
            found[cells[:filled]] = 2 * (request.row + 1)
