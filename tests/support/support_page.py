"""docs/support.md: what can be priced, by model, GPU, engine and format of weights. `make docs` writes it."""

from __future__ import annotations

from pathlib import Path

from servesim.cost.support import LEGEND, Support, as_tables, matrix

PAGE = Path(__file__).resolve().parents[2] / "docs" / "support.md"
HEAD = f"""# What can be priced

Made by `make docs` (`servesim models --matrix` prints it, `servesim models qwen3 --matrix` a part of it); do not edit
it by hand.

{LEGEND}. Each cell is the smallest server of 1, 2, 4 or 8 GPUs that holds the weights in 90 % of its memory, and the
smaller of two percentages: a decode step of 32 sequences at 2,048 tokens, and a prompt of 2,048 tokens. Norms,
activations and sampling are by formula everywhere. A GPU without kernel tables (`servesim gpus`) is by formula
alone; where an engine has no tables of its own on a GPU, vLLM's stand in, and the cell is `p`. Formats: the one a
model is published in, fp8, int4 (weights alone) and nvfp4; models whose experts have a format of their own (gpt-oss:
mxfp4) keep it. Experts are whole where the engine refuses to split them by width (FP8 blocks). Refused: no such
arithmetic on the GPU, or weights that 8 GPUs do not hold.

Measured is about kernels, not about servers: how far simulated servers are from measured ones is in
[how-true.md](how-true.md).

"""


def page() -> str:
    """Return the page as it should be."""
    return page_of(list(matrix()))


def page_of(found: list[Support]) -> str:
    """Return the page with these cells."""
    return HEAD + as_tables(found)


def cells(text: str) -> dict[tuple[str, str, str, str], str]:
    """Return the cells of the page by engine, model, format and GPU."""
    found, engine, gpus = {}, "", [""]
    for line in text.splitlines():
        row = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("## "):
            engine = line[3:]
        elif line.startswith("| model"):
            gpus = row[2:]
        elif line.startswith("| "):
            found |= {(engine, row[0], row[1], gpu): cell for gpu, cell in zip(gpus, row[2:], strict=True)}
    return found


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
