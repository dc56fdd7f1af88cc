"""Contract of figures: what the summary of a run says, each figure declared once.

A group of figures is a section of summary.json. From its declaration follow that section and its JSON schema, the rows
of the terminal and the page, the tiles of the page, the metrics of compare, sweep and `--require`, and the definitions
of `servesim figures` and docs/metrics.md. Built-in groups are in servesim.metrics.figures; features add theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from servesim.contracts.schemas import DISTRIBUTION, FIGURE, Schema, a_map, an_object, or_null
from servesim.errors import UserError

Summary = Mapping[str, Any]
Rows = list[tuple[str, str]]
"""Rows of a table: what a figure is called, and the figure in words."""
Words = str | Callable[[Summary], str | None]
"""Text with figures in braces, `{hit_rate}` of its group and `{engine.steps}` of another; or a function that returns
such text of the whole summary, or None if there is nothing to show. Other braces are written twice (`literal`)."""


@dataclass(frozen=True)
class Figure:
    """A figure."""

    name: str
    """Its key in the section."""
    doc: str
    """Its definition, in Markdown."""
    of: Callable[[Any], Any]
    """Returns its value, of what its group is made from; None if there is nothing it could be of."""
    unit: str = ""
    """ms, s, requests/s, tokens/s, share (0 to 1), $ or another; empty: a count, or no number."""
    schema: Schema | None = None
    """JSON schema of its value, by default a number or null."""
    better: str = ""
    """lower or higher: comparisons and `--require` know it as a metric, of a distribution the mean and percentiles."""
    scale: str = "ratio"
    """How a metric changes. ratio: relatively; difference: absolutely, as shares and counts, which may be 0."""
    label: str = ""
    """Its name in tables and sentences, by default its key with blanks."""
    latency: bool = False
    """Grows without end in an unstable run."""
    optional: bool = False
    """Left out where its value is None."""
    stretched: str = ""
    """Rule of a metric where all times of the servers are f times as long, and requests arrive as much more rarely:
    longer (times f), rarer (over f) or same; empty: longer if it is a latency, else not known."""
    inside: Group | None = None
    """Figures of each object in its value, which is a map by name (a_map)."""

    def __post_init__(self) -> None:
        allowed = {"better": ("", "lower", "higher"), "scale": ("ratio", "difference"),
                   "stretched": ("", "longer", "rarer", "same")}  # fmt: skip
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                words = ", ".join(filter(None, values))
                raise UserError(f"figure {self.name}: {name} is {getattr(self, name)!r}, must be one of {words}")
        if not isinstance(self.doc, str) or not callable(self.of) or not isinstance(self.schema, dict | None):
            raise UserError(
                f"figure {self.name}: needs a definition (text) and a function, and schema must be a mapping"
            )

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics that it is: of a distribution one for each of STATISTICS."""
        if not self.better:
            return ()
        return tuple(f"{self.name}_{of}" for of in STATISTICS) if self.distributed else (self.name,)

    @property
    def becomes(self) -> str:
        """Rule where all times are longer, as `stretched`."""
        return self.stretched or ("longer" if self.latency else "")

    @property
    def words(self) -> str:
        """Its name in tables and sentences."""
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
"""Statistics of a distribution that are metrics."""


def literal(text: str) -> str:
    """Return words that say this text, whatever braces it has."""
    return text.replace("{", "{{").replace("}", "}}")


def _is_words(words: Any) -> bool:
    return isinstance(words, str) or callable(words)


class Tile(NamedTuple):
    """A key figure at the top of the page: what it is called, its value, and a line below it."""

    name: str
    value: Words
    note: Words
    bad: Callable[[Summary], bool] = lambda summary: False
    """Returns whether it is a warning."""


@dataclass(frozen=True)
class Group:
    """Figures of one section of the summary."""

    section: str
    """Its key in the summary; empty: its figures are at the top."""
    words: str
    """Its name in tables and headings."""
    figures: tuple[Figure, ...]
    doc: str = ""
    """Sentences above its definitions, in Markdown."""
    rows: tuple[tuple[str, Words], ...] | Callable[[Summary], Rows] | None = None
    """Label and words of its rows in the terminal and on the page, or a function that returns them; None: one row with
    all figures."""
    after: tuple[str, ...] = ()
    """Labels of rows after which its own stand: after the first that is there, else after all."""
    tiles: tuple[Tile, ...] = ()
    source: Callable[[Any], Any] = lambda measured: measured
    """Returns what its figures are made from, of a run that was measured (servesim.metrics.measured.Measured; of a
    feature, whatever its part passes to `of`); None: the section is null."""
    many: Callable[[Schema], Schema] | None = None
    """Its section has several such objects: a_list or a_map (servesim.contracts.schemas)."""
    null: bool = False
    """Whether its section may be null; it then has no rows and no tiles, but for `if_null`."""
    if_null: str = ""
    """Words of the row of a section that is null; empty: no row."""
    windowed: bool = False
    """Whether its metrics can be computed for a part of a run, too: `of` takes servesim.experiments.run_metrics.Slice.
    Else a comparison takes them of whole runs, and knows no interval where there is one run."""

    def __post_init__(self) -> None:
        if not isinstance(self.figures, tuple) or not all(isinstance(figure, Figure) for figure in self.figures):
            raise UserError(f"figures of {self.section!r}: must be a tuple of Figures, such as (Figure(...),)")
        names = [figure.name for figure in self.figures]
        for name in names:
            if not name.isidentifier() or names.count(name) > 1:
                raise UserError(f"figures of {self.section!r}: {name!r} is not a valid name, or appears twice")
        if not self.words:
            raise UserError(f"figures of {self.section!r}: the group needs words, its name in tables")
        if self.many is not None and any(figure.better for figure in self.figures):
            raise UserError(f"figures of {self.section!r}: a group with several entries cannot have metrics (better)")
        rows = self.rows if isinstance(self.rows, tuple) else ()
        if not all(isinstance(row, tuple) and len(row) == 2 and _is_words(row[1]) for row in rows):
            raise UserError(
                f"figures of {self.section!r}: rows must be pairs of label and words, such as ((LABEL, WORDS),)"
            )

    def flat(self) -> Iterator[tuple[str, Figure]]:
        """Yield each figure with its path from the section, those inside others too."""
        for figure in self.figures:
            yield figure.name, figure
            if figure.inside is not None:
                yield from ((f"{figure.name}[].{path}", inner) for path, inner in figure.inside.flat())

    def of(self, measured: Any) -> dict[str, Any] | None:
        """Return the section of a run."""
        found = self.source(measured)
        return None if found is None else self.values(found)

    def values(self, found: Any) -> dict[str, Any]:
        """Return its figures by name, of what they are made from."""
        values = {figure.name: figure.of(found) for figure in self.figures}
        for figure in self.figures:
            if figure.optional and values[figure.name] is None:
                del values[figure.name]
        return values

    def within(self, summary: Summary) -> Any:
        """Return the section in a summary; None if it is null or missing."""
        return summary.get(self.section) if self.section else summary

    def schema(self) -> Schema:
        """Return the JSON schema of the section."""
        may = {figure.name: figure.described() for figure in self.figures if figure.optional}
        must = {figure.name: figure.described() for figure in self.figures if not figure.optional}
        one = an_object(may, **must)
        section = one if self.many is None else self.many(one)
        return or_null(section) if self.null else section
