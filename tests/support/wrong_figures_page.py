"""docs/wrong-figures.md from the record of verdicts: `python -m tests.support.wrong_figures_page [FOLDER]`. FOLDER is
what `servesim reproduce ... --out FOLDER` wrote; the experiments in it replace those of the record first."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from servesim_lab.claims import GROUPS, experiments
from servesim_lab.claims.outcome import COURSE
from servesim_lab.claims.record import NAME, lines_of, recorded
from tests.support.documents import ROOT

PAGE, RECORD = ROOT / "docs" / "wrong-figures.md", ROOT / "lab" / "claims" / NAME
HEAD = """# Wrong figures

What lecture texts on efficient inference get wrong, by their own formulas and assumptions: their figure, the right one,
and the command that shows it, with the assumptions in a file. Made by `python -m tests.support.wrong_figures_page` from
the verdicts of `servesim reproduce`; do not edit it by hand. Published measurements that come out differently here are
not in this list: `servesim reproduce all` tells them with their causes.
"""


def page_of() -> str:
    """Return the page for the recorded verdicts."""
    parts = [HEAD]
    for group, heading in GROUPS.items():
        rows = [
            [row["what"], row["published"], row["simulated"], row.get("note", ""), f"`servesim reproduce {name}`"]
            for name, one in experiments().items()
            if one.group == group and one.source.startswith(COURSE)
            for row in recorded().get(name, ())
            if row["verdict"] == "corrected"
        ]
        if rows:
            table = [["claim", "the text", "right", "why", "command"], ["---"] * 5, *rows]
            cells = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n" for row in table]
            parts.append(f"\n## {heading}\n\n" + "".join(cells).replace("|  |", "| |").replace("| --- ", "|---"))
    return "".join(parts).replace("---| --- |", "---|---|").replace("|--- |", "|---|")


def take(folder: Path) -> None:
    """Put the experiments of a folder into the record."""
    known = {name: lines_of(name, [{"share": None, **row} for row in rows]) for name, rows in recorded().items()}
    for path in folder.glob("*.json"):
        document = json.loads(path.read_text(encoding="utf-8"))
        if "rows" in document:
            known[document["name"]] = lines_of(document["name"], document["rows"])
    lines = [line for name in experiments() for line in known.get(name, ())]
    RECORD.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    recorded.cache_clear()


if __name__ == "__main__":
    for given in sys.argv[1:]:
        take(Path(given))
    PAGE.write_text(page_of(), encoding="utf-8")
