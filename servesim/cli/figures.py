"""`servesim figures`: the meaning of each figure of a run, and which figures are metrics used in comparisons."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from servesim.cli.known import WIDTH, Json, Words, matching, print_json, refuse
from servesim.errors import UserError

if TYPE_CHECKING:
    from servesim.contracts.figures import Group

FIGURES_EXAMPLES = """
\b
Examples:
  servesim figures
  servesim figures ttft
  servesim figures prefix cache --json
  servesim figures --features energy.py:Energy

A figure marked "higher is better" or "lower is better" is also a metric for compare, sweep and --require.
"""


def figures(
    words: Words = None,
    features: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE.py:CLASS", help="Your own feature to include. Repeatable."),
    ] = None,
    as_json: Json = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print tables in Markdown.")] = False,
) -> None:
    """List every figure of a run, with its unit and definition.

    Each figure is named by its path in summary.json.
    """
    from servesim.run.shown import groups_of

    groups = groups_of(tuple(features or ()))
    if markdown and words:
        raise UserError("--markdown prints all figures: remove the search words")
    if markdown:
        sys.stdout.write(as_markdown(groups))
        return
    known = list(every(groups))
    found = matching(known, words or ()) or refuse(words or (), known, "figure", "figures")
    if as_json:
        print_json({"figures": found})
        return
    for one in found:
        unit = f" ({one['unit']})" if one["unit"] else ""
        typer.echo(f"{one['key']}{unit}{_metrics_text(one)}")
        for line in textwrap.wrap(one["doc"].replace("`", ""), WIDTH - 4):
            typer.echo(f"    {line}")


def every(groups: Sequence[Group]) -> Iterator[dict[str, Any]]:
    """Yield each figure: its place in the summary, unit, definition, and its metrics."""
    for group in groups:
        of = f"{group.section}{'[]' if group.many else ''}." if group.section else ""
        for path, figure in group.flat():
            yield {
                "key": f"{of}{path}",
                "unit": figure.unit,
                "doc": figure.doc,
                "better": figure.better or None,
                "metrics": list(figure.metrics),
            }


def _metrics_text(one: dict[str, Any]) -> str:
    if not one["metrics"]:
        return ""
    return f"  [metric {', '.join(one['metrics'])}; {one['better']} is better]"


def as_markdown(groups: Sequence[Group]) -> str:
    """Return the definitions of all figures as tables, as in docs/metrics.md."""
    parts = []
    for group in groups:
        place = f"`{group.section}`" if group.section else "at the top"
        lines = [f"### {group.words[0].upper()}{group.words[1:]} ({place})", ""]
        if group.doc:
            lines += [*textwrap.wrap(group.doc, 118, break_on_hyphens=False, break_long_words=False), ""]
        lines += ["| figure | unit | better | definition |", "|---|---|---|---|"]
        lines += [f"| `{path}` | {one.unit} | {one.better} | {one.doc} |" for path, one in group.flat()]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"
