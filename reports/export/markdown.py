"""Markdown for pull requests."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from servesim.reports.export import one_run
from servesim.reports.page import Table
from servesim.reports.run import Run
from servesim.reports.run_page import alerts, chips, latency_table, subtitle, tiles, title


def write(folder: Path, file: TextIO) -> None:
    """Write the figures of a result."""
    file.write(of_run(Run(one_run(folder, "markdown"))))


def of_run(run: Run) -> str:
    """Headline, warnings, key figures and latencies of one run."""
    lines = [f"### {plain(title(run))}", "", plain(subtitle(run)) + "  "]
    lines.append(", ".join(f"{name} **{plain(value)}**" for name, value in chips(run)))
    for alert in alerts(run):
        lines += ["", f"> **{plain(alert.head)}** {plain(alert.text)}"]
    figures = [(t["name"], f"{t['value']} {t['unit']}".strip(), t["note"]) for t in tiles(run)]
    lines += ["", *rows(Table("", ("figure", "value", ""), figures, (False, True, False)))]
    lines += ["", *rows(latency_table(run))]
    notes = [f"- {plain(note)}" for note in run.summary["notes"]]
    lines += ["", "<details><summary>Scenario and notes</summary>", "", *notes, ""]
    lines += ["```yaml", run.scenario.to_yaml().rstrip(), "```", "", "</details>", ""]
    return "\n".join(lines)


def rows(table: Table) -> list[str]:
    """A table as Markdown."""
    align = ["---:" if numeric else "---" for numeric in table.numeric]
    cells = [table.columns, align, *table.rows]
    return ["| " + " | ".join(plain(cell) if cell not in align else cell for cell in row) + " |" for row in cells]


def plain(text: object) -> str:
    """Text that Markdown leaves as it is."""
    escaped = str(text)
    for character in "\\`*_{}[]<>|#":
        escaped = escaped.replace(character, f"\\{character}")
    return escaped.replace("\n", " ")
