"""Code that the pages of experiments share: wording of metrics and settings, colors of variants, the runs behind
them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from servesim.errors import UserError
from servesim.experiments.metrics import metric_label
from servesim.experiments.objects import title
from servesim.experiments.replicates import counted
from servesim.metrics.slo import parse_slo, split_slo
from servesim.reports.ink import SERIES
from servesim.reports.page import Block, Page, Section, warned
from servesim.reports.run import Run
from servesim.reports.svg import Drawing
from servesim.reports.words import gpu_of, name_of, number, percent, time_ms
from servesim.run.provenance import refuse_older
from servesim.run.result import Result
from servesim.run.result_files import SUMMARY
from servesim.run.sections import rate_words
from servesim.untrusted import read_json

BARE = ("ms", "$", "share")
"""Units written next to each value rather than in the label."""
TONES = {
    "undecided": "open",
    "better": "up",
    "worse": "down",
    "too fast": "down",
    "too slow": "down",
    "failed": "down",
    "unstable": "down",
    "never": "down",
    "carries": "up",
}


@dataclass(frozen=True)
class Experiment:
    """Result of an experiment: its document, and the directory with its runs, if they were kept."""

    document: Mapping[str, Any]
    folder: Path | None

    @classmethod
    def load(cls, folder: Path, kind: str) -> Experiment:
        """Load a comparison, sweep or capacity question from its files."""
        path = folder / f"{kind}.json"
        try:
            document = read_json(path)
        except UserError as error:
            raise UserError(f"{path}: damaged: {str(error).removeprefix(f'{path}: ')}") from error
        if not isinstance(document, dict):
            raise UserError(f"{path}: damaged: not a JSON object")
        if missing := {"schema", "answer", "workload", "settings", "warnings", "notes"} - set(document):
            refuse_older(folder, missing)
            raise UserError(f"{path}: damaged: {', '.join(sorted(missing))} missing from it")
        return cls(document, folder)

    @property
    def kind(self) -> str:
        """Kind of experiment: comparison, sweep or capacity."""
        return str(self.document["schema"]).removeprefix("servesim.").partition("/")[0]

    @property
    def addresses(self) -> dict[str, list[str]]:
        """Addresses of the runs that did not fail, by variant."""
        document = self.document
        if self.kind == "capacity":
            labels = [row["label"] for row in document["rows"]]
            return {label: [p["address"] for p in _reported(document, label)] for label in labels}
        return {v["label"]: [a for a in v["cells"] if a] for v in document["variants"]}

    @property
    def best(self) -> str | None:
        """Name of the best variant."""
        document = self.document
        if self.kind == "comparison":
            return next(iter(document["ranking"]["order"]), None)
        if self.kind == "sweep":
            stable = [v["label"] for v in document["variants"] if v["status"] == "ok" and v["stability"] != "unstable"]
            chosen = document["best"] and document["best"]["label"]
            return chosen if chosen is not None else next(reversed(stable), None)
        carried = [row for row in document["rows"] if row["verdict"] == "carries"]
        best = max(carried, key=lambda row: (row["cheapest"], row["rate"]), default=None)
        return best and str(best["label"])

    def path(self, address: str) -> Path:
        """Return the directory of a run; raise UserError if it was not kept."""
        path = self.folder and self.folder / "cells" / address
        if path is None or not path.is_dir():
            raise UserError(f"the runs were not kept: run the {self.kind} with --out (in Python: out=)")
        return path

    def run(self, variant: str | None = None) -> Run:
        """Return the first run of a variant, by default the best; raise UserError if there is none."""
        label = variant if variant is not None else self.best
        if label is None or label not in self.addresses:
            wrong = "nothing did best" if label is None else f"no variant {label!r}"
            raise UserError(f"{wrong}: choose from {'; '.join(self.addresses)}")
        if not self.addresses[label]:
            raise UserError(f"{label}: all of its runs failed")
        return Run(Result.load(self.path(self.addresses[label][0])))


Figures = dict[str, Callable[[Experiment], Drawing | None]]
"""Functions that draw each figure of a kind of experiment; they return None if there is nothing to draw."""


def _reported(document: Mapping[str, Any], label: str) -> list[Mapping[str, Any]]:
    """Return the runs of a deployment at the reported rate and size, or all its runs if it sustains no rate."""
    row = next(row for row in document["rows"] if row["label"] == label)
    points = [p for p in document["points"] if p["label"] == label]
    return [p for p in points if (p["rate"], p["replicas"]) == (row["rate"], row["replicas"])] or points


def with_unit(metric: Mapping[str, Any]) -> str:
    """Return a metric's label, with its unit unless every value includes it."""
    words = metric_label(metric["name"])
    return words if metric["unit"] in BARE or not metric["unit"] else f"{words}, {metric['unit']}"


def amount(value: float | None, unit: str) -> str:
    """Return a metric's value with its unit."""
    if value is None:
        return "–"
    if unit == "ms":
        return str(time_ms(value))
    text: str = number(value) if unit != "share" else percent(value)
    return f"${text}" if unit == "$" else text if unit == "share" else f"{text} {unit}".strip()


def change(value: float | None, scale: str, unit: str) -> str:
    """Format a change with its sign: as a percentage, in percentage points, or in the metric's unit."""
    if value is None:
        return "–"
    if scale == "ratio" or unit == "share":
        points = "%" if scale == "ratio" else "points"
        size = 100 * value
        text = f"{size:+,.0f}" if abs(size) >= 100 else f"{size:+.1f}"
        return f"{text.replace('-', '−')} {points}"
    return f"{value:+.3g}".replace("-", "−")


def interval(row: Mapping[str, Any]) -> str:
    """Return the interval of a change as text."""
    if row["change_low"] is None:
        return "–"
    low, high = (change(row[key], row["scale"], row["unit"]) for key in ("change_low", "change_high"))
    return f"{low.partition(' ')[0]} to {high}"


def pill(text: str, tone: str | None = None) -> Markup:
    """Return a word as a colored label."""
    return Markup('<span class="pill {}">{}</span>').format(tone or TONES.get(text, "even"), text)


def colours(labels: Sequence[str]) -> dict[str, str]:
    """Return a color for each variant; variants beyond the last color share it."""
    return {label: SERIES[min(i, len(SERIES) - 1)] for i, label in enumerate(labels)}


def workload_words(workload: Mapping[str, Any]) -> tuple[str, str]:
    """Return (model on GPU, replayed workload), as far as all variants share them."""
    served = name_of(str(workload["model"])) if workload.get("model") else ""
    if served and workload.get("gpu"):
        served += f" on {gpu_of(str(workload['gpu']))}"
    replayed = title(str(workload.get("trace", "a workload")))
    if workload.get("requests"):
        replayed = f"{workload['requests']:,} requests of {replayed}"
    if workload.get("rate"):
        replayed += f" at {rate_words(workload['rate'])}"
    return served, replayed


def _shared_settings(document: Mapping[str, Any]) -> list[Block]:
    """Return the settings that all runs share, and how the experiment was run."""
    facts = [(key, _plain(value)) for key, value in sorted(document["workload"].items())]
    how = [("replicates", counted(document["replicates"]))]
    how += [(key.replace("_", " "), _plain(value)) for key, value in document["settings"].items() if value is not None]
    return [Block("pairs", "What all runs share", facts), Block("pairs", "How it was done", how)]


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_plain(inner)}" for key, inner in value.items())
    if isinstance(value, list):
        return ", ".join(_plain(inner) for inner in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def setting_chips(experiment: Experiment) -> list[tuple[str, str]]:
    """Return the main facts about a deployment: weights, GPUs and limits, as far as all variants share them."""
    firsts = [found[0] for found in experiment.addresses.values() if found]
    summaries = [Path(experiment.folder or "") / "cells" / address / SUMMARY for address in firsts]
    scenarios = [read_json(path)["scenario"] for path in summaries if path.is_file()]
    chips = []
    for key, words in (("dtype", "weights"), ("tp", "tensor parallel"), ("pp", "pipeline stages")):
        values = {scenario[key] for scenario in scenarios}
        if len(values) == 1 and (key != "pp" or values != {1}):
            chips.append((words, str(values.pop())))
    limits = [f"{name.upper()} ≤ {limit:g} ms" for name, limit in limits_of(experiment.document).items()]
    return chips + ([("limits", ", ".join(limits))] if limits else [])


def limits_of(document: Mapping[str, Any]) -> dict[str, float]:
    """Return the per-request limits that all variants share, in ms, by latency metric."""
    slo = document["workload"].get("slo") or {}
    return split_slo(parse_slo(slo))[0] if isinstance(slo, str) else dict(slo)


def _provenance(experiment: Experiment) -> list[tuple[str, str]]:
    """Return the provenance of the numbers, as recorded in one of the runs."""
    address = next((a for found in experiment.addresses.values() for a in found), None)
    summary = Path(experiment.folder or "") / "cells" / str(address) / SUMMARY
    if address is None or not summary.is_file():
        return []
    p = read_json(summary)["provenance"]
    tables = p["kernel_tables"]
    measured = f"{tables['name']}, measured by {', '.join(tables['measured_by'])}" if tables else "none: roofline"
    return [
        ("trace", f"{p['trace']['name']}, sha256 {p['trace']['sha256'][:16]}…"),
        ("cost model", p["cost_model"]),
        ("kernel tables", measured),
        ("versions", ", ".join(f"{name} {v}" for name, v in sorted(p["versions"].items()))),
    ]


def page_of(
    experiment: Experiment,
    title: str,
    chips: list[tuple[str, str]],
    tiles: list[dict[str, Any]],
    sections: Sequence[Section],
) -> Page:
    """Return a page with the parts that all experiments have: the workload below the title, the answer and the
    warnings, and the method at the end."""
    document = experiment.document
    served, replayed = workload_words(document["workload"])
    rests = _provenance(experiment)
    runs = [(label, ", ".join(found) or "failed") for label, found in experiment.addresses.items()]
    done = [
        *_shared_settings(document),
        *([Block("pairs", "What it is based on", rests, wide=True)] if rests else []),
        *([Block("list", "Notes", list(document["notes"]), wide=True)] if document["notes"] else []),
        Block(
            "pairs",
            "Runs",
            runs,
            wide=True,
            text=("These directories are under cells/. servesim report shows any one of them."),
        ),
    ]
    every = [*sections, Section("How it was done", done)]
    return Page(
        "experiment",
        experiment.kind,
        f"{title}: {served}" if served else title,
        replayed,
        chips,
        warned(document),
        {"answer": document["answer"], "tiles": tiles, "sections": [s for s in every if s.blocks]},
    )
