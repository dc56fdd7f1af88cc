"""A canvas on which a figure is measured and written by one SVG renderer.

matplotlib's own makes a renderer for every text that is measured before the figure is saved, and another one to save
it, each of which measures all texts again.
"""

from __future__ import annotations

import io
from functools import lru_cache
from typing import Any

from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.backends.backend_svg import RendererSVG
from matplotlib.figure import Figure
from matplotlib.textpath import text_to_path

UNDATED = {"Date": None, "Creator": None, "Format": None, "Type": None}


class Renderer(RendererSVG):
    """SVG renderer that measures a text once for all figures of a process."""

    def get_text_width_height_descent(self, s: str, prop: Any, ismath: Any) -> Any:
        return _measured(s, prop.copy(), ismath)


@lru_cache(4096)
def _measured(text: str, font: Any, ismath: Any) -> Any:
    return text_to_path.get_text_width_height_descent(text, font, ismath)


class Canvas(FigureCanvasBase):
    """Figure of `width` x `height` CSS pixels, one to the point."""

    def __init__(self, width: int, height: int) -> None:
        super().__init__(Figure(figsize=(width / 72, height / 72), dpi=72))
        self._out = io.StringIO()
        made: Any = Renderer  # its base is not typed
        self._renderer: Any = made(width, height, self._out, metadata=UNDATED)

    def get_renderer(self) -> Any:
        """Return the renderer that texts are measured with."""
        return self._renderer

    def svg(self) -> str:
        """Draw the figure and return it as the text of an SVG file; only once."""
        self.figure.draw(self._renderer)
        self._renderer.finalize()
        return self._out.getvalue()
