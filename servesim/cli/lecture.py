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
    gpu: Annotated[str, typer.Option(help="A GPU, or a YAML data sheet.")] = "h100",
    out: Annotated[
        Path,
        typer.Option("--out", "-o", metavar="DIR", help="Directory for them, or FILE.html for the page alone."),
    ] = Path("lecture"),
) -> None:
    """Draw eight figures that explain serving.

    Prompts and answers under the roofline, static and continuous batching, chunked prefill, where KV memory goes,
    shared prefixes, latency against load, throughput against interactivity, and speculation, all simulated for a model
    and a GPU, as a page and as SVG for slides.
    """
    from servesim.reports.lecture import lecture as simulated
    from servesim.reports.lecture_page import write

    page = write(out, simulated(model, gpu), model, gpu)
    typer.echo(f"written to {page}", err=True)
