"""`servesim report`: the contents of a result directory as a page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from servesim.errors import Interrupted, UserError

REPORT_EXAMPLES = """
\b
Examples:
  servesim report result
  servesim report result -o report.html --window 30:45
"""
EXPORT_EXAMPLES = """
\b
Examples:
  servesim export result --to perfetto -o trace.json.gz
  servesim export result --to vllm-bench -o bench.json
  servesim export result --to latency_cdf --width 3.3 -o latency.pdf

A figure's file ends in .svg, .pdf or .png. In Python: servesim.figure.
"""


def page_file(out: Path) -> None:
    """Raise UserError if a page cannot be written: the file name is not that of an HTML page, or an existing file was
    not written by servesim."""
    from servesim.reports.files import refuse_foreign

    if out.suffix not in (".html", ".htm"):
        raise UserError(f"--out {out}: must end in .html")
    refuse_foreign(out)


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Directory that a command wrote with --out.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Page to write. [default: report.html in DIR]")
    ] = None,
    window: Annotated[
        str | None, typer.Option(metavar="FROM:TO", help="Time range of the request chart in seconds, such as 30:45.")
    ] = None,
) -> None:
    """Make one self-contained HTML page from a result.

    The page includes figures, tables and provenance."""
    if out is not None:
        from servesim.reports.files import refuse_foreign

        refuse_foreign(out)
    typer.echo(f"written to {write_report(folder, out, _window(window))}", err=True)


def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Directory that a command wrote with --out.")],
    to: Annotated[str, typer.Option(help="Format: perfetto, vllm-bench, aiperf, csv or markdown; or a figure's name.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="File to write. A name that ends in .gz is compressed.")
    ],
    width: Annotated[
        float | None, typer.Option(metavar="INCHES", help="Lay the figure out for a paper: 3.3 for a column.")
    ] = None,
    panel: Annotated[str | None, typer.Option(help="Draw only the panel with this title.")] = None,
    name: Annotated[
        list[str] | None, typer.Option(metavar="OLD=NEW", help="Rename a variant in the figure. Repeatable.")
    ] = None,
) -> None:
    """Write a result in another tool's format, or one of its figures.

    The formats are Perfetto traces, vllm bench JSON, AIPerf JSONL, CSV, and Markdown for pull requests."""
    from servesim.reports.export import FORMATS
    from servesim.reports.export import export as write
    from servesim.reports.export.picture import write_figure

    if to in FORMATS and (width, panel, name) != (None, None, None):
        raise UserError(f"--width, --panel and --name are for figures, not for --to {to}")
    with undamaged(folder):
        for note in write_figure(folder, to, out, width, panel, name or ()) if to not in FORMATS else ():
            typer.echo(f"note: {note}", err=True)
        if to in FORMATS:
            write(folder, to, out)
    typer.echo(f"written to {out}", err=True)


def write_report(folder: Path, out: Path | None = None, window_s: tuple[float, float] | None = None) -> Path:
    """Write the page of a result directory, by default into that directory."""
    from servesim.reports.files import writing
    from servesim.reports.report import report as build
    from servesim.run.result_files import REPORT

    path = out or folder / REPORT
    try:
        with undamaged(folder):
            html = build(folder, window_s)
        with writing(path) as file:
            file.write(html)
    except KeyboardInterrupt:
        raise Interrupted(
            f"{folder} is complete except for its report. To write the report, run servesim report {folder}"
        ) from None
    return path


@contextmanager
def undamaged(folder: Path) -> Iterator[None]:
    """Turn errors caused by damaged figures (null, text, a missing part) into a UserError that names their folder. If
    the files are unmodified, the error is a bug and is raised unchanged."""
    from servesim.run.provenance import as_written
    from servesim.run.result_files import TIMING

    try:
        yield
    except (TypeError, LookupError, AttributeError, ValueError, ArithmeticError) as error:
        if as_written(folder, TIMING):
            raise
        raise UserError(f"{folder}: damaged result: {type(error).__name__}: {error}") from error


def _window(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    begin, _, end = text.partition(":")
    try:
        window = float(begin), float(end)
    except ValueError:
        raise UserError(f"--window {text}: must be two numbers of seconds, such as 30:45") from None
    if not 0 <= window[0] < window[1] < float("inf"):
        raise UserError(f"--window {text}: must begin at 0 or later and end after its start")
    return window
