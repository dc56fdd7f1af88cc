"""Search over crossed techniques: every combination runs through the sweep code, and the best one is named."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from servesim.experiments.axes import Variant
from servesim.experiments.metrics import METRICS
from servesim.experiments.ranking import PARETO
from servesim.experiments.runner import open_runner
from servesim.experiments.sweep import SWEEP, Table

from . import Given

Combination = tuple[str, ...]
"""One choice for each option."""


@dataclass(frozen=True)
class Found:
    """Results of every combination of options."""

    options: Mapping[str, Sequence[str]]
    values: dict[Combination, float | None]
    """Values of the metric, or None if a combination does not run."""
    errors: dict[Combination, str]
    prices: dict[Combination, float]
    """Prices in dollars per million output tokens."""
    higher: bool
    """Whether a higher metric is better."""

    @property
    def baseline(self) -> Combination:
        """Combination of the first choice of every option."""
        return tuple(choices[0] for choices in self.options.values())

    def ranked(self) -> list[Combination]:
        """Return the combinations that run, best first."""
        sign = -1 if self.higher else 1
        running = [c for c, value in self.values.items() if value is not None]
        return sorted(running, key=lambda c: sign * (self.values[c] or 0.0))

    def gain(self, after: Combination, before: Combination) -> float:
        """Return the gain of `after` over `before` as a factor; infinite if only `after` runs."""
        new, old = self.values[after], self.values[before]
        if new is None:
            return 0.0
        if old is None:
            return float("inf")
        return new / old if self.higher else old / new

    def changed(self, combination: Combination, choice: str) -> Combination:
        """Return the combination with one option set to `choice`."""
        return tuple(
            choice if choice in choices else mine
            for mine, choices in zip(combination, self.options.values(), strict=True)
        )

    def alone(self, choice: str) -> float:
        """Return the gain of a technique over the baseline."""
        return self.gain(self.changed(self.baseline, choice), self.baseline)

    def in_the_best(self, choice: str) -> float:
        """Return the gain of the best combination with a technique over the best without it."""
        ranked = self.ranked()
        with_it = next((c for c in ranked if choice in c), None)
        without = next((c for c in ranked if choice not in c), None)
        if with_it is None:
            return 0.0
        return self.gain(with_it, without) if without is not None else float("inf")


def search(question: Given) -> Found:
    """Run every combination of `question["options"]` on top of its `base`, for its `metric`."""
    options: dict[str, dict[str, Any]] = question["options"]
    metric = METRICS[question["metric"]]
    temporary = tempfile.TemporaryDirectory(prefix="servesim-")
    with temporary as scratch, open_runner(None, SWEEP, "local", 1, None) as runner:
        variants = []
        for names in itertools.product(*options.values()):
            settings = dict(question["base"])
            for name, choices in zip(names, options.values(), strict=True):
                settings = merged(settings, choices[name])
            settings["model"] = model_file(settings["model"], Path(scratch))
            variants.append(Variant(" / ".join(names), {"choice": names}, settings))
        wanted = [metric, METRICS["usd_per_million_output_tokens"], *(METRICS[m] for m in PARETO if m != metric.name)]
        table = Table(runner, wanted, 0.0, 0.0, metric, 1)
        table.run(variants)
        runs = table.document()["variants"]
    found: dict[Combination, Any] = {tuple(run["axes"]["choice"]): run for run in runs}
    return Found(
        options={name: list(choices) for name, choices in options.items()},
        values={c: run["values"][metric.name] if not run["error"] else None for c, run in found.items()},
        errors={c: run["error"] for c, run in found.items() if run["error"]},
        prices={c: run["values"]["usd_per_million_output_tokens"] for c, run in found.items() if not run["error"]},
        higher=metric.better == "higher",
    )


def merged(settings: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with other settings merged in recursively."""
    inner = {
        key: {**settings[key], **value}
        for key, value in change.items()
        if isinstance(value, Mapping) and isinstance(settings.get(key), Mapping)
    }
    return {**settings, **change, **inner}


def model_file(model: str | Mapping[str, Any], folder: Path) -> str:
    """Return the name of a model, or the config.json of a bundled one (`of`) with some keys changed."""
    if isinstance(model, str):
        return model
    changes = {key: value for key, value in model.items() if key != "of"}
    bundled = resources.files("servesim.hardware").joinpath("models", f"{model['of']}.json")
    config = {**json.loads(bundled.read_text(encoding="utf-8")), **changes}
    path = folder / "-".join([model["of"], *(f"{key}={value}" for key, value in changes.items())]) / "config.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(config), encoding="utf-8")
    return str(path)
