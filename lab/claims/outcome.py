"""Outcome of an experiment: rows with a verdict each, notes, figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from servesim.metrics.words import amount
from servesim.reports.figures.kinds import Figure

VERDICTS = {
    "reproduced": "the simulator gives the published figure, within the distance the experiment states",
    "partly": "some of the simulated figures lie in the published range and others do not, or some of several "
    "statements hold; the share is that of the published range which the simulated one covers, or of the statements",
    "by formula": "the figure agrees in whole or in part, but more than half of a time that it compares is priced by "
    "formula (a roofline), not by measured kernels: the agreement proves nothing",
    "corrected": "the published figure does not follow from its own assumptions; the right one is shown",
    "differs": "a published measurement that the simulation does not meet; the note says why",
    "out of reach": "the simulator cannot show it; the note says why",
    "calibrated": "a constant was set by this figure, so that it proves nothing",
    "shown": "nothing was published to hold it against",
}
"""Verdicts and their meanings."""
EXPLAINED = ("differs", "out of reach")
"""Verdicts that need a note."""
MOSTLY = 0.5
"""Share of a GPU time priced by formula above which agreement proves nothing."""
COURSE = "lecture texts on efficient inference"
"""Source of many claims."""
GROUPS = {
    "memory": "Memory",
    "time": "Time",
    "batching": "Batching",
    "speculation": "Speculation",
    "choices": "Choices",
    "systems": "Systems",
    "published": "Published experiments",
}
"""Subjects of claims in the order of the overall table, with its headings."""


@dataclass(frozen=True)
class Row:
    """One claim with the simulator's figure; everything is text, including units."""

    what: str
    published: str
    simulated: str
    verdict: str
    """Verdict, one of VERDICTS."""
    note: str = ""
    """Cause of a difference, or other information for the reader."""
    group: str = ""
    """Group, one of GROUPS, or empty for the experiment's own group."""
    share: float | None = None
    """With the verdict partly: share of the published range that the simulated range covers, or of the statements that
    hold."""

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"{self.what}: verdict {self.verdict!r} is none of {', '.join(VERDICTS)}")
        if self.verdict in EXPLAINED and not self.note:
            raise ValueError(f"{self.what}: {self.verdict} without a cause in the note")
        if self.verdict == "shown" and self.published not in ("", "-"):
            raise ValueError(f"{self.what}: published {self.published!r}, but 'shown' is for figures without a claim")
        if self.group and self.group not in GROUPS:
            raise ValueError(f"{self.what}: group {self.group!r} is none of {', '.join(GROUPS)}")
        if (self.verdict == "partly") != (self.share is not None):
            raise ValueError(f"{self.what}: the verdict partly has a share, and no other has")


LISTENER: ContextVar[Callable[[Row], None] | None] = ContextVar("LISTENER", default=None)
"""Function told of each row as an experiment adds it."""


@dataclass
class Outcome:
    """Rows, notes and figures of an experiment."""

    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Assumptions that are not in the scenario, and constants that the experiment sets."""
    figures: list[Figure] = field(default_factory=list)

    def add(self, row: Row) -> None:
        """Add a row, and tell whoever listens."""
        self.rows.append(row)
        if (tell := LISTENER.get()) is not None:
            tell(row)

    def near(
        self,
        what: str,
        published: float | Sequence[float],
        simulated: float | Sequence[float],
        unit: str = "",
        *,
        within: float = 0.0,
        formula: float = 0.0,
        told: str = "",
        otherwise: str = "differs",
        note: str = "",
        cause: str = "",
        group: str = "",
    ) -> None:
        """Add a row that is reproduced if every simulated figure lies within a relative distance of the published one
        (the note gives the distance unless both are equal), or of the range from `published[0]` to `published[1]`, and
        partly if the range of the simulated figures only overlaps it. `otherwise` is the verdict if it does not; it is
        "corrected" if the text is wrong by its own formula. `cause` is then added to the note. `formula` is the largest
        share of a compared GPU time that is priced by formula; `told` replaces the text of the simulated figures."""
        low, high = _ends(published)
        least, most = _ends(simulated)
        near_low, near_high = low - within * abs(low), high + within * abs(high)
        share, notes = None, [note]
        if near_low <= least and most <= near_high:
            verdict = "reproduced"
            if not (low <= least and most <= high) and {amount(least), amount(most)} - {amount(low), amount(high)}:
                notes.append(f"taken as the same up to {amount(100 * within, '%')} off")
        elif least <= near_high and most >= near_low:
            verdict, share = "partly", covered((low, high), (least, most))
            inside = covered((least, most), (low, high))
            told_share = f"covers {amount(100 * share, '%')} of the published range" if low < high else "contains it"
            notes += [cause, f"the simulated range {told_share}; {amount(100 * inside, '%')} of it lies there"]
        else:
            verdict = otherwise
            notes.append(cause or ("" if note or verdict not in EXPLAINED else "cause not known"))
        if verdict in ("reproduced", "partly") and formula > MOSTLY:
            verdict, share = "by formula", None
            notes.append(f"{100 * formula:.0f} % of a GPU time compared is by formula")
        claimed, found = (_range(*ends, unit) for ends in ((low, high), (least, most)))
        self.add(Row(what, claimed, told or found, verdict, "; ".join(filter(None, notes)), group, share))

    def holds(
        self,
        what: str,
        published: str,
        simulated: str,
        holds: bool | Sequence[bool],
        *,
        formula: float = 0.0,
        otherwise: str = "differs",
        note: str = "",
        cause: str = "cause not known",
        group: str = "",
    ) -> None:
        """Add a text row, reproduced if a condition holds, or all of several; partly if some of them do. `formula` is
        as in `near`."""
        parts = [holds] if isinstance(holds, bool) else list(holds)
        share = sum(parts) / len(parts)
        verdict = "reproduced" if share == 1 else "partly" if share else otherwise
        notes = [note] if share == 1 else [note, cause]
        if verdict in ("reproduced", "partly") and formula > MOSTLY:
            verdict = "by formula"
            notes.append(f"{100 * formula:.0f} % of a GPU time compared is by formula")
        note = "; ".join(filter(None, notes))
        self.add(Row(what, published, simulated, verdict, note, group, share if verdict == "partly" else None))


def said(verdict: str, share: float | None) -> str:
    """Return a verdict with its share."""
    return verdict if share is None else f"{verdict}, {amount(100 * share, '%')}"


def covered(whole: tuple[float, float], by: tuple[float, float]) -> float:
    """Return the share of a range's length that another range covers; of a single figure, 1 if it lies in there."""
    length = whole[1] - whole[0]
    overlap = min(whole[1], by[1]) - max(whole[0], by[0])
    return max(overlap, 0.0) / length if length else float(overlap >= 0)


@contextmanager
def listening(tell: Callable[[Row], None]) -> Iterator[None]:
    """Call `tell` with each row that is added to an outcome until the context ends."""
    token = LISTENER.set(tell)
    try:
        yield
    finally:
        LISTENER.reset(token)


def _ends(figures: float | Sequence[float]) -> tuple[float, float]:
    return (figures, figures) if isinstance(figures, int | float) else (min(figures), max(figures))


def _range(low: float, high: float, unit: str) -> str:
    return amount(low, unit) if low == high else f"{amount(low)} to {amount(high, unit)}"
