"""Space of the deployments that a search may choose from.

Nothing is listed here that another room knows: GPUs with kernel tables and measured weight formats come from the
support matrix, degrees of parallelism from the memory model, parameters of a scheduler and settings of a feature from
their own `searched`. Whether a combination runs is asked of `set_up`, so that a combination enters the space on the
day it runs.

A setting that the user fixes is not searched. A setting with several values is searched over those values.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from servesim.contracts import routers, schedulers
from servesim.contracts.searched import Span, searched_of
from servesim.contracts.section import Settings
from servesim.cost.support import ENGINES, PARTLY, formats, support
from servesim.errors import PolicyError, UserError
from servesim.experiments.axes import Variant, axis_values, label_of, product
from servesim.experiments.capacity_scaled import at_load
from servesim.experiments.replicates import WORKLOAD
from servesim.experiments.smallest_tp import set_up_alone
from servesim.hardware import Gpu, ModelSpec, gpu_names
from servesim.hardware.memory import TP_DEGREES
from servesim.run.scenario import Scenario, scenario_features
from servesim.run.setting_names import full_name
from servesim.run.setup import Setup

Choices = Span | tuple[Any, ...]
Point = dict[str, Any]
"""Values by setting; settings at their defaults are left out."""
NO_CONTENT = ("offload", "scheduler.schedule_policy")
"""Settings that have no effect on a trace without prompt content."""


DEFAULT = "default"
"""Label of the deployment from which the others differ by their labels."""


def grid(choices: Choices) -> tuple[Any, ...]:
    """Return the values of a grid search: all of them, or powers of 2 for a range."""
    if not isinstance(choices, Span):
        return choices
    return tuple(choices.low * 2**i for i in range(int(math.log2(choices.high / choices.low)) + 1))


@dataclass(frozen=True)
class Space:
    """Deployments of a model: hardware, parallelism, formats and engine first, and flags given those."""

    base: Settings
    """Settings that all deployments share: the workload, and everything that the user fixed."""
    axes: Mapping[str, Choices]
    """Values by structural setting."""
    own: Mapping[str, Choices]
    """Values of further settings, as the user listed them."""
    content: bool = True
    """Whether the trace records the content that prompts share."""
    fixed: frozenset[str] = frozenset()
    """Settings that are not searched."""

    def structures(self) -> Iterator[Point]:
        """Yield every combination of the structural settings, and only one of several that are the same."""
        seen = set()
        for values in itertools.product(*map(grid, self.axes.values())):
            point = dict(zip(self.axes, values, strict=True))
            scenario = repr(self._resolved(point))
            if scenario not in seen:
                seen.add(scenario)
                yield point

    def _resolved(self, point: Point) -> Any:
        try:
            return Scenario.of(self.settings(point))
        except UserError as error:
            return point, str(error)

    def features(self, point: Point) -> dict[str, Choices]:
        """Return the values of the settings of features, for a deployment."""
        found: dict[str, Choices] = {k: v for feature in scenario_features() for k, v in feature.searched.items()}
        if int(point.get("replicas") or self.base.get("replicas") or 1) > 1:
            found["router"] = (
                None,
                *(name for name in routers.names() if getattr(routers.resolve(name)[0], "searched", False)),
            )
        return self._open({key: values for key, values in found.items() if key not in self.own}, point)

    def flags(self, point: Point) -> dict[str, Choices]:
        """Return the values of the flags of a deployment: those that the user listed, and those of its scheduler."""
        found: dict[str, Choices] = dict(self.own)
        scheduler = schedulers.resolve(Scenario.of(self.settings(point)).scheduler["name"])[0]
        for name, choices in searched_of(scheduler.Params).items():
            found.setdefault(f"scheduler.{name}", choices)
        return self._open(found, point)

    def _open(self, found: dict[str, Choices], point: Point) -> dict[str, Choices]:
        """Return the choices without settings that are fixed or have no effect."""
        left_out = {*self.fixed, *(() if self.content else NO_CONTENT), *point.keys() & self.axes.keys()}
        return {key: choices for key, choices in found.items() if key not in left_out or key in self.own}

    def grid(self, key: str, choices: Choices) -> tuple[Any, ...]:
        """Return the values of a setting to try, with None for a default."""
        values = grid(choices)
        if key in self.own or key in self.axes or isinstance(choices, Span):
            return values
        return (None, *values[1:])

    def settings(self, point: Point) -> Settings:
        """Return the settings of a deployment."""
        given = {key: [value] for key, value in point.items() if value is not None}
        if point.get("pd") is not None:
            given.pop("tp", None)
        settings = product(self.base, given)[0].settings
        return {**settings, **at_load(settings, "replicas", point["replicas"])} if point.get("replicas") else settings

    def variant(self, point: Point, changes: Mapping[str, Any] | None = None) -> Variant:
        """Return a deployment, with further settings such as the length of its runs."""
        shown = {key: value for key, value in point.items() if value is not None and self._told(key, point)}
        label = " ".join(_label(key, value) for key, value in shown.items()) or DEFAULT
        return Variant(label, shown, {**self.settings(point), **(changes or {})})

    @property
    def formats(self) -> Point:
        """Formats of the published model."""
        return {key: grid(self.axes[key])[0] for key in ("dtype", "kv_dtype") if key in self.axes}

    def published(self, point: Point) -> bool:
        """Return whether a deployment has the formats of the published model."""
        return all(point.get(key) == value for key, value in self.formats.items())

    def _told(self, key: str, point: Point) -> bool:
        """Return whether a label names a structural setting: only if it differs among deployments."""
        return not (key == "tp" and point.get("pd")) and (key not in self.axes or len(grid(self.axes[key])) > 1)

    def set_up(self, point: Point) -> Setup | str:
        """Return a deployment that is ready to run, or the reason it cannot run."""
        try:
            return set_up_alone(self.settings(point))
        except (UserError, PolicyError) as error:
            return str(error)


def _label(key: str, value: Any) -> str:
    """Return a setting in a deployment's label: hardware, engine and format without a key, others without a section."""
    return str(value) if key in ("preset", "dtype") else label_of(key, value).rpartition("scheduler.")[2]


def space_of(
    settings: Mapping[str, Any], lists: Mapping[str, Any], content: bool, tuned: bool = False, by_formula: bool = False
) -> Space:
    """Return the space of a question. With `tuned`, only flags are searched, from the given ones."""
    lists = {full_name(key): given for key, given in lists.items()}
    several = {key: tuple(values) for key, given in lists.items() if len(values := axis_values(key, given)) > 1}
    single = {key: given for key, given in lists.items() if key not in several}
    base = product(settings, single)[0].settings
    own = {key: values for key, values in several.items() if key not in STRUCTURE}
    fixed = {*single, *_flat(settings), *WORKLOAD}
    if tuned:
        known = Scenario.of(base)
        started = {key for key in _flat(settings) if key.startswith("scheduler.")} - {*single}
        kept = fixed - started
        return Space(base, {"gpu": (known.gpu,)}, own, content, frozenset({*kept, *STRUCTURE, "pd"}))
    axes: dict[str, Choices] = {}
    for key, values_of in STRUCTURE.items():
        given = several.get(key) or ((base[key],) if base.get(key) is not None else None)
        axes[key] = given or values_of(base, axes, by_formula)
    if base.get("kernel_tables") is None and not by_formula:
        axes["gpu"] = tuple(gpu for gpu in axes["gpu"] if gpu not in gpu_names() or Gpu.load(gpu).tables is not None)
    return Space(base, {key: values for key, values in axes.items() if values}, own, content, frozenset(fixed))


def _flat(settings: Mapping[str, Any]) -> Iterator[str]:
    for key, value in settings.items():
        yield key
        if isinstance(value, Mapping):
            yield from (f"{key}.{name}" for name in value)


def _formats(base: Settings, axes: Mapping[str, Choices], by_formula: bool) -> tuple[str, ...]:
    """Return the weight formats that are measured for the model on some GPU and engine of the question, after the
    published one."""
    model = str(base.get("model"))
    published, *others = formats(model)
    engines = [str(name) for name in grid(axes.get("preset", ("vllm",)))] or ["vllm"]
    states = {
        dtype: {support(model, gpu, engine, dtype).state for gpu in grid(axes["gpu"]) for engine in engines}
        for dtype in others
    }
    return (published, *(dtype for dtype, found in states.items() if by_formula or "measured" in found))


def _spread(base: Settings, axes: Mapping[str, Choices], by_formula: bool) -> tuple[bool, ...]:
    return () if ModelSpec.load(str(base.get("model"))).experts is None else (False, True)


STRUCTURE: dict[str, Callable[[Settings, Mapping[str, Choices], bool], tuple[Any, ...]]] = {
    "gpu": lambda base, axes, by_formula: tuple(n for n in gpu_names() if by_formula or Gpu.load(n).tables is not None),
    "preset": lambda base, axes, by_formula: () if base.get("scheduler") is not None else ENGINES,
    "dtype": _formats,
    "kv_dtype": lambda base, axes, by_formula: (None, "fp8"),
    "tp": lambda base, axes, by_formula: () if base.get("pd") or base.get("pools") else tuple(TP_DEGREES),
    "engine.enable_expert_parallel": _spread,
}
"""Functions that return the values of a structural setting, from the settings before it."""


def measured(setup: Setup) -> bool:
    """Return whether enough of the GPU time of a deployment comes from measured kernels."""
    from servesim.cost.support import PROBES

    return min(sum(setup.cost.price(batch).shares[:2]) for batch in PROBES) >= PARTLY


def changed(point: Point, key: str, value: Any) -> Point:
    """Return a deployment with one setting changed, or without it for None. Pools have numbers of replicas of their
    own."""
    left_out = {key} if value is None else {"replicas"} if key == "pd" else set()
    return {k: v for k, v in {**point, key: value}.items() if k not in left_out}
