"""Contract of figures: the contents of a run's summary, with each figure declared once.

A group of figures is a section of summary.json. Its declaration defines that section and its JSON schema, the rows of
the terminal and the page, the tiles of the page, the metrics of compare, sweep and `--require`, and the definitions in
`servesim figures` and docs/metrics.md. Built-in groups are in servesim.metrics.figures; features add theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from servesim.errors import UserError
from servesim.schemas import DISTRIBUTION, FIGURE, Schema, a_map, an_object, or_null

Summary = Mapping[str, Any]
Rows = list[tuple[str, str]]
"""Rows of a table: the label of a figure, and the figure as text."""
Words = str | Callable[[Summary], str | None]
"""Text with figures in braces, `{hit_rate}` from its group and `{engine.steps}` from another; or a function that
returns such text from the whole summary, or None if there is nothing to show. Other braces are doubled (`literal`)."""


@dataclass(frozen=True)
class Figure:
    """A figure of the summary."""

    name: str
    """Key in the section."""
    doc: str
    """Definition, in Markdown."""
    of: Callable[[Any], Any]
    """Function that returns the figure's value from its group's source, or None if it is undefined."""
    unit: str = ""
    """Unit: ms, s, requests/s, tokens/s, share (0 to 1), $ or another; empty for a count or a non-number."""
    schema: Schema | None = None
    """JSON schema of its value; by default a number or null."""
    better: str = ""
    """Better direction, lower or higher. Setting it makes the figure a metric for comparisons and `--require` (for a
    distribution, its mean and percentiles)."""
    scale: str = "ratio"
    """Scale of a metric's changes. ratio: relative; difference: absolute, for shares and counts, which may be 0."""
    label: str = ""
    """Name in tables and sentences; by default its key with spaces."""
    latency: bool = False
    """Whether it grows without bound in an unstable run."""
    optional: bool = False
    """Whether it is omitted if its value is None."""
    stretched: str = ""
    """Effect on a metric if all server times are f times as long and requests arrive at 1/f of the rate: longer (times
    f), rarer (divided by f) or same. If empty: longer for a latency, else unknown."""
    inside: Group | None = None
    """Figures of each object in its value, if that is a map by name (a_map)."""

    def __post_init__(self) -> None:
        allowed = {"better": ("", "lower", "higher"), "scale": ("ratio", "difference"),
                   "stretched": ("", "longer", "rarer", "same")}  # fmt: skip
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                words = ", ".join(filter(None, values))
                raise UserError(f"figure {self.name}: {name} is {getattr(self, name)!r} but must be one of {words}")
        if not isinstance(self.doc, str) or not callable(self.of) or not isinstance(self.schema, dict | None):
            raise UserError(
                f"figure {self.name}: must have a definition (text) and a function, and 'schema' must be a mapping"
            )

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of its metrics; a distribution has one for each of STATISTICS."""
        if not self.better:
            return ()
        return tuple(f"{self.name}_{of}" for of in STATISTICS) if self.distributed else (self.name,)

    @property
    def becomes(self) -> str:
        """Effect of longer server times, as in `stretched`."""
        return self.stretched or ("longer" if self.latency else "")

    @property
    def words(self) -> str:
        """Name in tables and sentences."""
        return self.label or self.name.replace("_", " ")

    @property
    def distributed(self) -> bool:
        """Whether its value is a distribution: count, mean, percentiles."""
        return self.schema == DISTRIBUTION

    def described(self) -> Schema:
        """Return the JSON schema of its value, with its unit and definition."""
        unit = f" ({self.unit})" if self.unit else ""
        schema = self.schema or (FIGURE if self.inside is None else a_map(self.inside.schema()))
        return {**schema, "description": f"{self.doc}{unit}"}


STATISTICS = ("mean", "p50", "p90", "p95", "p99")
"""Statistics of a distribution that serve as metrics."""


def literal(text: str) -> str:
    """Return the text with its braces doubled, so that it is displayed literally."""
    return text.replace("{", "{{").replace("}", "}}")


def _is_words(words: Any) -> bool:
    return isinstance(words, str) or callable(words)


class Tile(NamedTuple):
    """Key figure at the top of the page: its name, its value, and a line below it."""

    name: str
    value: Words
    note: Words
    bad: Callable[[Summary], bool] = lambda summary: False
    """Function that returns whether the tile is a warning."""


@dataclass(frozen=True)
class Group:
    """Figures of one section of the summary."""

    section: str
    """Key in the summary; if empty, the figures are at the top level."""
    words: str
    """Name in tables and headings."""
    figures: tuple[Figure, ...]
    doc: str = ""
    """Text above its definitions, in Markdown."""
    rows: tuple[tuple[str, Words], ...] | Callable[[Summary], Rows] | None = None
    """Label and text of its rows in the terminal and on the page, or a function that returns them. None: one row with
    all figures."""
    after: tuple[str, ...] = ()
    """Labels of rows after which its own rows are placed: after the first that is present, else after all rows."""
    tiles: tuple[Tile, ...] = ()
    source: Callable[[Any], Any] = lambda measured: measured
    """Function that returns the input of its figures, given a measured run (servesim.metrics.measured.Measured; for a
    feature, whatever its part passes to `of`). None: the section is null."""
    many: Callable[[Schema], Schema] | None = None
    """Function that makes the schema of a section with several such objects: a_list or a_map (servesim.schemas)."""
    null: bool = False
    """Whether its section may be null; it then has no rows or tiles except `if_null`."""
    if_null: str = ""
    """Text of the row of a section that is null; no row if empty."""
    windowed: bool = False
    """Whether its metrics can also be computed for part of a run: `of` takes servesim.experiments.run_metrics.Slice.
    Otherwise a comparison uses whole runs, and has no interval if there is only one run."""

    def __post_init__(self) -> None:
        if not isinstance(self.figures, tuple) or not all(isinstance(figure, Figure) for figure in self.figures):
            raise UserError(f"figures of {self.section!r}: must be a tuple of Figures, such as (Figure(...),)")
        names = [figure.name for figure in self.figures]
        for name in names:
            if not name.isidentifier() or names.count(name) > 1:
                raise UserError(f"figures of {self.section!r}: {name!r} is not a valid name, or appears twice")
        if not self.words:
            raise UserError(f"figures of {self.section!r}: the group must have 'words', its name in tables")
        if self.many is not None and any(figure.better for figure in self.figures):
            raise UserError(f"figures of {self.section!r}: a group with several entries cannot have metrics (better)")
        rows = self.rows if isinstance(self.rows, tuple) else ()
        if not all(isinstance(row, tuple) and len(row) == 2 and _is_words(row[1]) for row in rows):
            raise UserError(
                f"figures of {self.section!r}: rows must be pairs of label and words, such as ((LABEL, WORDS),)"
            )

    def flat(self) -> Iterator[tuple[str, Figure]]:
        """Yield each figure with its path from the section, including nested ones."""
        for figure in self.figures:
            yield figure.name, figure
            if figure.inside is not None:
                yield from ((f"{figure.name}[].{path}", inner) for path, inner in figure.inside.flat())

    def of(self, measured: Any) -> dict[str, Any] | None:
        """Return the section of a run."""
        found = self.source(measured)
        return None if found is None else self.values(found)

    def values(self, found: Any) -> dict[str, Any]:
        """Return its figures by name, computed from their input."""
        values = {figure.name: figure.of(found) for figure in self.figures}
        for figure in self.figures:
            if figure.optional and values[figure.name] is None:
                del values[figure.name]
        return values

    def within(self, summary: Summary) -> Any:
        """Return the section in a summary, or None if it is null or missing."""
        return summary.get(self.section) if self.section else summary

    def schema(self) -> Schema:
        """Return the JSON schema of the section."""
        may = {figure.name: figure.described() for figure in self.figures if figure.optional}
        must = {figure.name: figure.described() for figure in self.figures if not figure.optional}
        one = an_object(may, **must)
        section = one if self.many is None else self.many(one)
        return or_null(section) if self.null else section
