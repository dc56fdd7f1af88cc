"""Pages of `servesim lecture`: eight figures, each under the question it answers, and the canvases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from servesim.errors import UserError
from servesim.reports.canvases.page import canvases_page
from servesim.reports.files import refuse_foreign, writing
from servesim.reports.lecture import SLIDES
from servesim.reports.page import Block, Page, Section
from servesim.reports.svg import Drawing
from servesim.reports.words import gpu_of, name_of

PAGE = "lecture.html"
CANVASES = "canvases.html"


def lecture_page(drawings: Mapping[str, Drawing], model: str, gpu: str) -> Page:
    """Return the page of the figures from `servesim.lecture`."""
    sections = [
        Section(slide.question, [Block("drawing", "", replace(drawings[slide.name], wide=True))], f"on-{slide.name}")
        for slide in SLIDES
    ]
    subtitle = f"{name_of(model)} on {gpu_of(gpu)}, simulated"
    return Page(
        "experiment", "lecture", "Serving in eight figures", subtitle, values={"tiles": [], "sections": sections}
    )


def write(out: Path, drawings: Mapping[str, Drawing], model: str, gpu: str) -> Path:
    """Write the page, an SVG file for each figure and the page of canvases to a directory, or the page alone if `out`
    ends in .html; return the page's path. Raise UserError if files would be replaced that are not servesim's."""
    alone = out.suffix in (".html", ".htm")
    page = out if alone else out / PAGE
    files = {} if alone else {out / f"{name}.svg": drawing.to_svg() for name, drawing in drawings.items()}
    files[page] = lecture_page(drawings, model, gpu).html()
    if not alone:
        files[out / CANVASES] = canvases_page(model, gpu).html()
    for path in files:
        refuse_foreign(path)
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{page.parent}: cannot be written: {error.strerror}") from error
    for path, text in files.items():
        with writing(path) as file:
            file.write(text)
    return page
