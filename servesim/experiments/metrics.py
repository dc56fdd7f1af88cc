"""Metrics of a run for comparisons, sweeps and `--require`: those figures of its summary for which lower or higher is
better (servesim.contracts.figures), and user-defined metrics.

Metrics have the names of the figures, with a statistic for distributions, such as `ttft_p99`, `tpot_mean` and
`output_throughput`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from servesim.contracts.feature import of_user
from servesim.contracts.figures import Figure, Group
from servesim.errors import UserError, suggest
from servesim.experiments.run_metrics import Slice
from servesim.metrics.custom import is_custom, load_metric, value_of
from servesim.metrics.requests import per
from servesim.parsing import listed
from servesim.run.shown import DERIVED, groups_of

Summary = Mapping[str, Any]


@dataclass(frozen=True)
class Metric:
    """Metric of a run."""

    name: str
    unit: str
    better: str
    """Direction of improvement: lower or higher."""
    scale: str
    """Scale of changes: ratio for relative changes; difference for absolute changes in shares and counts, which may be
    0."""
    part: Callable[[Slice], float]
    """Function that returns the metric's value over a part of a run, or NaN if it has none."""
    whole: Callable[[Summary], float | None]
    """Function that returns the metric's value from the summary of a run, or None if it has none."""
    label: str = ""
    """Name in tables and sentences. If empty, `name` with spaces instead of underscores."""
    latency: bool = False
    """Whether the metric grows without bound in an unstable run."""
    becomes: str = ""
    """Rule for how the metric's value changes if all times are longer (servesim.contracts.figures.Figure)."""

    def document(self) -> dict[str, Any]:
        """Return the metric's entry in an experiment's document."""
        return {key: getattr(self, key) for key in ("name", "unit", "better", "scale", "latency")}


def _metrics(groups: Iterable[Group]) -> Iterator[tuple[str, Metric]]:
    """Yield the figures that are metrics, with their metric names."""
    for group in groups:
        for figure in group.figures:
            for name in figure.metrics:
                yield name, _metric(name, group, figure)


def _metric(name: str, group: Group, figure: Figure) -> Metric:
    """Return the metric of a figure. Its name ends with a statistic if the figure is a distribution."""
    statistic = name.removeprefix(figure.name)[1:]

    def whole(summary: Summary) -> float | None:
        value: Any = (group.within(summary) or {}).get(figure.name)
        return (value or {}).get(statistic) if statistic else value

    def windowed(part: Slice) -> float:
        source = group.source(part)
        value: Any = figure.of(source) if source is not None else None
        return _number((value or {}).get(statistic) if statistic else value)

    def once(part: Slice) -> float:
        return _number(whole(part.run.summary) if part.whole else None)

    return Metric(
        name,
        figure.unit,
        figure.better,
        figure.scale,
        windowed if group.windowed else once,
        whole,
        f"{figure.words} {statistic}" if statistic else figure.words,
        figure.latency,
        figure.becomes,
    )


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)


METRICS = {
    **dict(_metrics(groups_of())),
    DERIVED: Metric(
        DERIVED,
        "",
        "lower",
        "difference",
        lambda part: _number(per(part.total("preemptions"), part.total("arrived"))),
        lambda summary: per(summary["engine"]["preemptions"], summary["requests"]["arrived"]),
    ),
}
DEFAULTS = (
    "ttft_mean",
    "ttft_p99",
    "tpot_mean",
    "tpot_p99",
    "e2el_mean",
    "e2el_p99",
    "output_throughput",
    "usd_per_million_tokens",
)
SLO_DEFAULTS = ("slo_attainment", "request_goodput")
_OWNERS: dict[str, str] = {}
"""Features that provide metrics, by metric name; an empty string for a user-defined function. These metrics are also in
METRICS, once they are known."""


def know_features(names: Iterable[str]) -> None:
    """Add the figures of a user's features to the metrics. Raise UserError if a metric of the same name already
    exists."""
    for feature in of_user(names):
        for name, metric in _metrics(feature.groups()):
            if name in METRICS and _OWNERS.get(name) != feature.name:
                raise UserError(f"feature {feature.name}: figure {name}: a metric of this name already exists")
            METRICS[name], _OWNERS[name] = metric, feature.name


def metric_label(name: str) -> str:
    """Return a metric's name in tables and sentences."""
    return (METRICS[name].label if name in METRICS else "") or name.replace("_", " ")


def metrics_of(names: Sequence[Any] | str | None, slo: Mapping[str, Any], features: Sequence[str] = ()) -> list[Metric]:
    """Return the requested metrics or, by default, the usual ones plus the SLO metrics if there is an SLO. `features`
    names the user's features, whose figures may also be metrics."""
    know_features(features)
    if names is None:
        names = (*DEFAULTS, *(SLO_DEFAULTS if slo else ()))
    names = listed("metrics", names) if isinstance(names, str) else list(names)
    names = [_known(name) if is_custom(name) else name for name in names]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"metrics: {twice} is specified twice")
    for name in names:
        if name not in METRICS:
            raise UserError(f"unknown metric {name!r}{suggest(name, METRICS)}")
        if name in SLO_DEFAULTS and not slo:
            raise UserError(f"metric {name} needs an SLO, such as --slo ttft:500,tpot:50")
    return [METRICS[name] for name in names]


def _known(metric: Any) -> str:
    """Add a user-defined metric to METRICS and return its name. Raise UserError if the name is taken."""
    name, function = load_metric(metric)
    if name in METRICS and _OWNERS.get(name) != "":
        raise UserError(f"metric {name}: a built-in metric has this name. Rename the function.")
    better = getattr(function, "better", "lower")
    if better not in ("lower", "higher"):
        raise UserError(f'metric {name}: better is {better!r} but must be "lower" or "higher"')
    METRICS[name] = Metric(
        name,
        str(getattr(function, "unit", "")),
        better,
        "difference",
        lambda part: value_of(name, function, part.table(), part.run.summary),
        lambda summary: summary.get("custom_metrics", {}).get(name),
    )
    _OWNERS[name] = ""
    return name


def summary_values(summary: Summary) -> dict[str, float | None]:
    """Return the value of each metric for a whole run, including the requested user-defined metrics."""
    return {**{name: metric.whole(summary) for name, metric in METRICS.items()}, **summary.get("custom_metrics", {})}
