"""Outcome of an experiment: rows with a verdict each, notes, figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from servesim.metrics.words import amount
from servesim.reports.figures.kinds import Figure

VERDICTS = {
    "reproduced": "the simulator gives the published figure, within the distance the experiment states",
    "corrected": "the published figure does not follow from its own assumptions; the right one is shown",
    "differs": "a published measurement that the simulation does not meet; the note says why",
    "out of reach": "the simulator cannot show it; the note says why",
    "calibrated": "a constant was set by this figure, so that it proves nothing",
    "shown": "nothing was published to hold it against",
}
"""Verdicts and their meanings."""
EXPLAINED = ("differs", "out of reach")
"""Verdicts that need a note."""
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

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"{self.what}: verdict {self.verdict!r} is none of {', '.join(VERDICTS)}")
        if self.verdict in EXPLAINED and not self.note:
            raise ValueError(f"{self.what}: {self.verdict} without a cause in the note")
        if self.verdict == "shown" and self.published not in ("", "-"):
            raise ValueError(f"{self.what}: published {self.published!r}, but 'shown' is for figures without a claim")
        if self.group and self.group not in GROUPS:
            raise ValueError(f"{self.what}: group {self.group!r} is none of {', '.join(GROUPS)}")


@dataclass
class Outcome:
    """Rows, notes and figures of an experiment."""

    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Assumptions that are not in the scenario, and constants that the experiment sets."""
    figures: list[Figure] = field(default_factory=list)

    def near(
        self,
        what: str,
        published: float | Sequence[float],
        simulated: float,
        unit: str = "",
        *,
        within: float = 0.0,
        otherwise: str = "differs",
        note: str = "",
        cause: str = "",
        group: str = "",
    ) -> None:
        """Add a row that is reproduced if the simulated figure lies within a relative distance of the published one
        (the note gives the distance unless both are equal), or of the range from `published[0]` to `published[1]`.
        `otherwise` is the verdict if it does not; it is "corrected" if the text is wrong by its own formula. `cause` is
        then added to the note."""
        low, high = (published, published) if isinstance(published, int | float) else published
        if low - within * abs(low) <= simulated <= high + within * abs(high):
            verdict = "reproduced"
            if not low <= simulated <= high and amount(simulated) not in (amount(low), amount(high)):
                said = f"taken as the same up to {amount(100 * within, '%')} off"
                note = "; ".join(text for text in (note, said) if text)
        else:
            verdict = otherwise
            note = "; ".join(text for text in (note, cause) if text)
            if verdict in EXPLAINED and not note:
                note = "cause not known"
        claimed = amount(low, unit) if low == high else f"{amount(low)} to {amount(high, unit)}"
        self.rows.append(Row(what, claimed, amount(simulated, unit), verdict, note, group))

    def holds(
        self,
        what: str,
        published: str,
        simulated: str,
        holds: bool,
        *,
        otherwise: str = "differs",
        note: str = "",
        cause: str = "cause not known",
        group: str = "",
    ) -> None:
        """Add a text row, reproduced if a condition holds."""
        if not holds:
            note = "; ".join(text for text in (note, cause) if text)
        self.rows.append(Row(what, published, simulated, "reproduced" if holds else otherwise, note, group))
