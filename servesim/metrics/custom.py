"""User-defined metrics: functions of a run's requests, named `path/to/file.py:function` or passed in Python.

    def slow_starts(requests, summary):
        return (requests["ttft_ns"] > 2e9).mean()

A function receives the requests as a DataFrame (the columns of requests.parquet; experiments leave out the warm-up and
cool-down) and the run's summary, and returns a number. Its optional attributes `unit` and `better` ("lower" or
"higher") state how to read it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from servesim.errors import UserError, suggest
from servesim.parsing import listed
from servesim.plugins.files import load_file

Function = Callable[[Any, Mapping[str, Any]], Any]
"""Function called with (requests, summary), where requests is a DataFrame."""


def is_custom(name: Any) -> bool:
    """Return whether a metric is a function or names one."""
    return callable(name) or (isinstance(name, str) and ".py:" in name)


def load_metric(metric: str | Function) -> tuple[str, Function]:
    """Return the name and function of a metric; raise UserError if there is no such function."""
    if callable(metric):
        name = getattr(metric, "__name__", "")
        if not name.isidentifier():
            raise UserError(f"metric {metric!r}: must be a named function (def, not lambda)")
        return name, metric
    head, py, name = metric.partition(".py:")
    path = Path(f"{head}.py")
    if not py or not path.is_file():
        raise UserError(f"metric {metric}: file {path} does not exist (write path/to/file.py:function)")
    module = load_file("metric", path, "servesim_metric_")
    found = getattr(module, name, None)
    if not callable(found):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise UserError(f"metric {metric}: {path} has no function {name!r}{suggest(name, known)}")
    return name, found


def value_of(name: str, function: Function, requests: Any, summary: Mapping[str, Any]) -> float:
    """Return a function's value for a run, or NaN if it returns None. Raise UserError if it fails or does not return a
    number."""
    try:
        value = function(requests, summary)
        number = math.nan if value is None else float(value)
    except Exception as error:
        raise UserError(f"metric {name}: {type(error).__name__}: {error}") from error
    return number


def custom_values(
    metrics: str | Function | Iterable[str | Function] | None, requests: Callable[[], Any], summary: Mapping[str, Any]
) -> dict[str, float | None]:
    """Return the values of a run's metrics by name; None for values that are not finite. `requests`: called to create
    the DataFrame if it is needed."""
    found = dict(load_metrics(metrics))
    if not found:
        return {}
    frame = requests()
    values = {name: value_of(name, function, frame, summary) for name, function in found.items()}
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def load_metrics(metrics: str | Function | Iterable[str | Function] | None) -> list[tuple[str, Function]]:
    """Return the name and function of each metric, given as a list, as a single metric, or as a comma-separated
    string."""
    if metrics is None:
        return []
    given = listed("metrics", metrics) if isinstance(metrics, str) else [metrics] if callable(metrics) else metrics
    found = [load_metric(metric) for metric in given]
    names = [name for name, _ in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"metrics: {twice} is specified twice")
    return found
