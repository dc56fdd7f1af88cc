"""The definitions in docs/metrics.md, written from the declarations: `python -m tests.support.figure_page`."""

from __future__ import annotations

from servesim.cli.figures import as_markdown
from servesim.run.shown import groups_of
from tests.support.documents import ROOT

PAGE = ROOT / "docs" / "metrics.md"
BEGIN, END = "<!-- begin: python -m tests.support.figure_page -->\n", "<!-- end -->\n"


def page() -> str:
    """Return the page with the definitions of all figures between its two marks."""
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{head}{BEGIN}\n{as_markdown(groups_of())}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
