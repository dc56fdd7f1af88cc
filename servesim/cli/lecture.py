"""`servesim lecture`: eight figures that explain serving."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

LECTURE_EXAMPLES = """
\b
Examples:
  servesim lecture
  servesim lecture --model qwen3-14b --gpu h200 --out slides
"""


def lecture(
    model: Annotated[str, typer.Option(help="Bundled model, or a Hugging Face config.json.")] = "llama-3.1-8b",
    gpu: Annotated[str, typer.Option(help="GPU, or a YAML data sheet.")] = "h100",
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="DIR", help="Directory for the page and its figures, or FILE.html for the page only."
        ),
    ] = Path("lecture"),
) -> None:
    """Draw eight figures that explain serving.

    The figures show prefill and decode under the roofline, static and continuous batching, chunked prefill, KV memory,
    shared prefixes, latency against load, throughput against interactivity, and speculation. All are simulated for one
    model and GPU. The output is a page, SVG files for slides, and canvases.html: formulas with sliders.
    """
    from servesim.reports.lecture import lecture as simulated
    from servesim.reports.lecture_page import write

    page = write(out, simulated(model, gpu), model, gpu)
    typer.echo(f"written to {page}", err=True)
