"""Eight figures that explain serving, each simulated for the given model and GPU.

for drawing in servesim.lecture("llama-3.1-8b", "h100").values():
    drawing.save(f"{drawing.name}.svg")
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from servesim.reports.figures.described import draw
from servesim.reports.figures.kinds import Figure
from servesim.reports.svg import Drawing

from . import batching, load, memory, phases


class Slide(NamedTuple):
    """Figure of the lecture."""

    name: str
    question: str
    """Question that the figure answers, for the heading."""
    make: Callable[[dict[str, Any]], Figure | Drawing]
    """Function that simulates the figure on a machine, given as `model` and `gpu`."""


SLIDES = (
    Slide("two-phases", "Why are prompts and answers different work?", phases.roofs),
    Slide("batching", "What does continuous batching change?", batching.slots),
    Slide("chunks", "What does a long prompt do to everybody else's tokens?", batching.chunks),
    Slide("reservation", "Where does KV memory go?", memory.reservation),
    Slide("prefixes", "What is a shared prefix worth?", memory.prefixes),
    Slide("knee", "How much load can a server take?", load.knee),
    Slide("interactivity", "What does a faster answer cost?", load.interactivity),
    Slide("drafts", "When does speculation pay?", load.drafts),
)


def lecture(model: str = "llama-3.1-8b", gpu: str = "h100") -> dict[str, Drawing]:
    """Return the figures by name, in lecture order; raise UserError if the model does not fit the GPU."""
    machine = {"model": model, "gpu": gpu}
    return {slide.name: _drawn(slide, machine) for slide in SLIDES}


def _drawn(slide: Slide, machine: dict[str, Any]) -> Drawing:
    made = slide.make(machine)
    return made if isinstance(made, Drawing) else draw(slide.name, made)
