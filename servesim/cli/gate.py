"""Gates for scripts: `--require`, `--overwrite` and `--quiet`, shared by several commands."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from servesim.errors import UserError

if TYPE_CHECKING:
    from servesim.cli.requirements import Requirement

Require = Annotated[
    list[str] | None,
    typer.Option(
        metavar="METRIC>=VALUE",
        help="Exit with code 1 if this requirement fails or a run is unstable. Repeatable. Examples: "
        "slo_attainment>=99%, ttft_p99<=1s, output_throughput>=2000.",
    ),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Allow --out to replace the result of a different scenario.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print no tables and no progress.")]

Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print all warnings and notes.")]


def a_directory(out: Path | None) -> Path | None:
    """Return the directory given as --out; raise UserError for a name that only a page would have."""
    if out is not None and out.suffix in (".html", ".htm"):
        raise UserError(f"--out {out}: must be a directory, such as {out.with_suffix('')}; its page is report.html")
    return out


def requirements(
    texts: Sequence[str] | None,
    units: Mapping[str, str] | None = None,
    scenarios: Iterable[Mapping[str, Any]] = (),
) -> list[Requirement]:
    """Parse the requirements. `units`: units of additional metrics by name. `scenarios`: settings, whose features may
    add metrics. Raise UserError for an unknown metric."""
    if not texts:
        return []
    from servesim.cli.requirements import Requirement
    from servesim.experiments.metrics import METRICS, know_features
    from servesim.run.scenario import own_features

    for settings in scenarios:
        know_features(own_features(settings.get("features")))

    known = {name: metric.unit for name, metric in METRICS.items()} | dict(units or {})
    return [Requirement.of(text, known) for text in texts]


def end_if(lines: Sequence[str]) -> None:
    """Print the unmet requirements on stderr, and exit with code 1 if there are any."""
    for line in lines:
        print(f"failed: {line}", file=sys.stderr)
    if lines:
        raise typer.Exit(1)


def comparison_failures(required: Sequence[Requirement], document: Mapping[str, Any]) -> list[str]:
    """Return the requirements that each variant of a comparison does not meet; measured variants are skipped."""
    from servesim.cli.requirements import failures
    from servesim.experiments.verdicts import is_unstable

    lines = []
    for v in document["variants"]:
        if v["cells"] == [None] and v["error"] is None:
            continue  # measured
        if v["error"] is not None:
            lines.append(f"{v['label']}: cannot run: {v['error']}")
            continue
        if is_unstable(v):
            lines.append(f"{v['label']}: the queue grows without bound")
        values = {row["metric"]: row["value"] for row in document["rows"] if row["variant"] == v["label"]}
        lines += failures(required, values, v["label"])
    return lines


CAPACITY_UNITS = {"rate": "", "replicas": "", "gpus": "", "usd_per_hour": "", "attainment": "share"}
"""Units of a deployment's values other than its metrics."""


def capacity_failures(required: Sequence[Requirement], document: Mapping[str, Any]) -> list[str]:
    """Return why no deployment meets all requirements; empty if one does."""
    from servesim.cli.requirements import failures

    lines = []
    for row in document["rows"]:
        name = row["label"] or "this"
        if row["verdict"] != "carries":
            lines.append(f"{name}: {row['error'] or row['verdict']}")
            continue
        found = failures(required, {**row["values"], **{key: row[key] for key in CAPACITY_UNITS}}, name)
        if not found:
            return []
        lines += found
    return lines
