"""Page of `servesim reproduce`: every claim with its verdict, then each experiment."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from servesim.errors import UserError
from servesim.reports.experiment import pill
from servesim.reports.figures.described import draw
from servesim.reports.figures.kinds import from_dict
from servesim.reports.files import writing
from servesim.reports.page import Alert, Block, Page, Section, Table
from servesim.reports.svg import Drawing, standalone
from servesim.run.result_files import REPORT
from servesim_lab.claims import GROUPS, VERDICTS, said

INDEX = "reproduced.json"
TONES = {"reproduced": "up", "partly": "open", "corrected": "open", "differs": "down"}
INTRODUCTION = "What papers and lectures say, and what the simulator makes of the same setting."
Document = Mapping[str, Any]


def write(out: Path, documents: Sequence[Document], errors: Mapping[str, str]) -> None:
    """Write a JSON document, the scenario and the figures of each experiment, an index, and the page. `errors` has one
    line per experiment, empty if there is none."""
    failed = {name: error for name, error in errors.items() if error}
    _write(out / INDEX, _json({"experiments": [d["name"] for d in documents], "failed": failed}))  # says whose folder
    for document in documents:
        name = document["name"]
        _write(out / f"{name}.json", _json({k: v for k, v in document.items() if k != "scenario"}))
        _write(out / "scenarios" / f"{name}.yaml", document["scenario"])
        for drawing in _drawings(document):
            _write(out / f"{drawing.name}.svg", standalone(drawing))
    _write(out / REPORT, page(out).html())


def _json(value: Any) -> str:
    """Return JSON with keys in the given order, which is the order of rows in a figure."""
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from error
    with writing(path) as file:
        file.write(text)


def _read(folder: Path) -> tuple[list[Document], dict[str, str]]:
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        documents: list[Document] = []
        for name in index["experiments"]:
            document = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
            scenario = (folder / "scenarios" / f"{name}.yaml").read_text(encoding="utf-8")
            documents.append({**document, "scenario": scenario})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder}: damaged: {error}") from error
    return documents, index["failed"]


def page(folder: Path) -> Page:
    """Return the page for the files that `write` left in a folder."""
    documents, failed = _read(folder)
    rows = [row for document in documents for row in document["rows"] if _is_claim(row)]
    counts = {verdict: sum(row["verdict"] == verdict for row in rows) for verdict in VERDICTS}
    sections = [_section(document) for document in documents]
    if len(documents) == 1:
        title, subtitle = documents[0]["claim"], f"Source: {documents[0]['source']}"
    else:
        title, subtitle = f"{len(rows)} claims, {len(documents)} experiments", INTRODUCTION
        sections.insert(0, Section("Every claim", _overview(documents, counts)))
    alerts = [Alert(f"{name} failed:", error, "bad") for name, error in failed.items()]
    values = {"answer": answer(counts), "tiles": _tiles(counts), "sections": sections}
    return Page("experiment", "reproduce", title, subtitle, [], alerts, values)


def answer(counts: Mapping[str, int]) -> str:
    """Return a sentence with the number of published figures that are reproduced."""
    total = sum(counts.values())
    rest = ", ".join(f"{n} {verdict}" for verdict, n in counts.items() if n and verdict != "reproduced")
    if not total:
        return ""
    return f"{counts['reproduced']} of {total} published figures come out as published{f'; {rest}' if rest else ''}."


def _tiles(counts: Mapping[str, int]) -> list[dict[str, Any]]:
    notes = {
        "reproduced": "as published",
        "partly": "some figures as published",
        "by formula": "agrees, and proves nothing",
        "corrected": "the text's figure is wrong",
        "differs": "published measurements not met",
        "out of reach": "said why",
    }
    return [{"name": verdict, "value": counts[verdict], "unit": "", "note": note} for verdict, note in notes.items()]


def _overview(documents: Sequence[Document], counts: Mapping[str, int]) -> list[Block]:
    words = [(verdict, f"{counts[verdict]}: {meaning}") for verdict, meaning in VERDICTS.items()]
    blocks = [Block("pairs", "Verdicts", words, wide=True)]
    for group, heading in GROUPS.items():
        found = [(d["name"], row) for d in documents for row in _claims(d, group)]
        if found:
            cells = [
                (row["what"], row["published"], row["simulated"], _verdict(row), _link(name)) for name, row in found
            ]
            columns = ("claim", "published", "simulated", "verdict", "experiment")
            blocks.append(Block("table", heading, Table(heading, columns, cells, (False,) * 5, "claims"), wide=True))
    return blocks


def _is_claim(row: Mapping[str, Any]) -> bool:
    """Return whether a row compares a published value with a figure; other rows appear only with their experiment."""
    return bool(row["verdict"] != "shown")


def _claims(document: Document, group: str) -> list[Mapping[str, Any]]:
    return [row for row in document["rows"] if row["group"] == group and _is_claim(row)]


def _section(document: Document) -> Section:
    name = document["name"]
    cells = [(row["what"], row["published"], row["simulated"], _verdict(row), row["note"]) for row in document["rows"]]
    columns = ("", "published", "simulated", "verdict", "note")
    table = Table(name, columns, cells, (False,) * 5, "claims")
    blocks = [Block("table", document["claim"], table, wide=True, text=f"Source: {document['source']}.")]
    blocks += [Block("drawing", "", drawing) for drawing in _drawings(document)]
    if document["notes"]:
        blocks.append(Block("list", "Notes", document["notes"], wide=True))
    blocks.append(Block("text", f"scenarios/{name}.yaml, the assumptions", document["scenario"], wide=True))
    return Section(name, blocks, name)


def _drawings(document: Document) -> list[Drawing]:
    return [draw(f"{document['name']}-{figure['name']}", from_dict(figure)) for figure in document["figures"]]


def _verdict(row: Mapping[str, Any]) -> Any:
    return pill(said(row["verdict"], row.get("share")), TONES.get(row["verdict"], "even"))


def _link(name: str) -> Markup:
    return Markup('<a href="#{0}">{0}</a>').format(name)
