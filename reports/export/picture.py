"""A figure of a result or an experiment as a file."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

from servesim.errors import UserError, suggest
from servesim.reports.drawings import figure, figures
from servesim.reports.export import FORMATS


def write_figure(
    folder: Path, name: str, out: Path, width: float | None, panel: str | None, names: Sequence[str]
) -> list[str]:
    """Write a figure in the format of the file's suffix; return which variants it does not show. `names` are OLD=NEW.
    Raise UserError if it would replace a file that servesim did not write."""
    if name not in (known := figures(folder)):
        raise UserError(f"unknown format or figure {name!r}{suggest(name, [*FORMATS, *known])}")
    pairs = [text.rpartition("=") for text in names]
    if wrong := [text for text, (old, _, new) in zip(names, pairs, strict=True) if not old or not new]:
        raise UserError(f"--name {wrong[0]}: must be OLD=NEW, such as vllm=baseline")
    if out.exists() and not (out.is_file() and b"servesim" in out.read_bytes()):
        raise UserError(f"--out {out}: exists and was not written by servesim")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        drawing = figure(folder, name, panel=panel, names={old: new for old, _, new in pairs})
    drawing.save(out, width)
    return [str(one.message) for one in said if one.category is UserWarning]
