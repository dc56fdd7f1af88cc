"""Markdown for pull requests."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TextIO

from markupsafe import Markup

from servesim.reports.export import one_run
from servesim.reports.page import Alert, Page, Section, Table, experiment_pages
from servesim.reports.run import Run
from servesim.reports.run_page import alerts, chips, subtitle, tiles, title
from servesim.reports.run_tables import latency_table


def write(folder: Path, file: TextIO) -> None:
    """Write the figures of a run or an experiment."""
    for name, module in experiment_pages().items():
        if (folder / name).is_file():
            file.write(of_page(import_module(module).page(folder)))
            return
    file.write(of_run(Run(one_run(folder, "markdown"))))


def of_page(page: Page) -> str:
    """Return warnings, sentences and tables of an experiment's page; everything after the first section is
    collapsed."""
    lines = [*_head(page.title, page.subtitle, page.chips), *_alerts(page.alerts)]
    first, *others = page.values["sections"]
    lines += _blocks(first)
    for section in others:
        inside = _blocks(section)
        if inside:
            lines += ["", f"<details><summary>{section.title}</summary>", *inside, "", "</details>"]
    return "\n".join([*lines, ""])


def _blocks(section: Section) -> list[str]:
    lines: list[str] = []
    for block in section.blocks:
        body: list[str] = [f"- {plain(line)}" for line in block.lines]
        if block.kind == "table":
            body += ["", *rows(block.content)]
        elif block.kind == "pairs":
            body += [f"- {plain(name)}: {plain(value)}" for name, value in block.content]
        elif block.kind == "list":
            body += [f"- {plain(line)}" for line in block.content]
        if body:
            lines += ["", *([f"**{plain(block.title)}**", ""] if block.title else []), *body]
    return lines


def _head(title: str, subtitle: str, chips: Sequence[tuple[str, str]]) -> list[str]:
    settings = ", ".join(f"{name} **{plain(value)}**" for name, value in chips)
    return [f"### {plain(title)} <!-- servesim -->", "", f"{plain(subtitle)}  ", settings]


def _alerts(alerts: Sequence[Alert]) -> list[str]:
    return [line for alert in alerts for line in ("", f"> **{plain(alert.head)}** {plain(alert.text)}")]


def of_run(run: Run) -> str:
    """Return the headline, warnings, key figures and latencies of one run."""
    lines = [*_head(title(run), subtitle(run), chips(run)), *_alerts(alerts(run))]
    figures = [(t["name"], f"{t['value']} {t['unit']}".strip(), t["note"]) for t in tiles(run)]
    lines += ["", *rows(Table("", ("figure", "value", ""), figures, (False, True, False)))]
    lines += ["", *rows(latency_table(run))]
    notes = [f"- {plain(note)}" for note in run.summary["notes"]]
    lines += ["", "<details><summary>Scenario and notes</summary>", "", *notes, ""]
    lines += ["```yaml", run.scenario.to_yaml().rstrip(), "```", "", "</details>", ""]
    return "\n".join(lines)


def rows(table: Table) -> list[str]:
    """Return a table as Markdown."""
    align = ["---:" if numeric else "---" for numeric in table.numeric]
    cells = [table.columns, align, *table.rows]
    return ["| " + " | ".join(cell if row is align else plain(cell) for cell in row) + " |" for row in cells]


def plain(text: object) -> str:
    """Escape text so that Markdown renders it literally."""
    escaped = text.replace(Markup("<small>"), Markup(" <small>")).striptags() if isinstance(text, Markup) else str(text)
    for character in "\\`*_{}[]<>|#":
        escaped = escaped.replace(character, f"\\{character}")
    return escaped.replace("\n", " ")
