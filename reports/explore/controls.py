"""Controls of the explorer: the only settings that its page may change.

Input from a browser is untrusted: a choice must be in a list, so that no name leads to a file, and a number must be
within bounds.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from servesim.contracts.kv import kv_allocators
from servesim.contracts.scheduler import schedulers
from servesim.contracts.section import policy_settings
from servesim.contracts.speculator import speculators
from servesim.errors import UserError, shown, suggest
from servesim.hardware import bundled_models, gpu_names
from servesim.metrics.slo import parse_slo, split_slo
from servesim.run.part_names import with_parts
from servesim.run.scenario import Scenario
from servesim.run.sections import yaml_value

MOST_REQUESTS = 20_000
TP = ("1", "2", "4", "8")
DTYPES = ("bf16", "fp8", "int8", "int4")
POLICIES = ("scheduler", "kv", "router", "speculation", "acceptance")

State = Mapping[str, str]
"""Settings that differ from the page's initial ones: values as text, by control key."""


@dataclass(frozen=True)
class Control:
    """Control of the page: a choice, or a number set by a slider."""

    key: str
    words: str
    group: str
    value: str
    """Initial value; empty if unset."""
    choices: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0
    whole: bool = False
    """Whether the value is an integer."""
    unit: str = ""
    logarithmic: bool = True
    yaml: bool = False
    """Whether the choices are YAML values."""

    def read(self, text: str) -> Any:
        """Return a value that the page sent, or None if unset; raise UserError if it is not valid for this control."""
        if self.choices:
            if text not in self.choices:
                raise UserError(f"{self.words}: {shown(text)} is not a valid choice{suggest(text, self.choices)}")
            if self.yaml:
                return yaml_value(self.key, text)
            return int(text) if self.key == "tp" else text
        if text == "":
            return None
        try:
            number = float(text)
        except ValueError:
            raise UserError(f"{self.words}: {shown(text)} is not a number") from None
        if not math.isfinite(number) or not self.low <= number <= self.high:
            raise UserError(f"{self.words}: {text} is not between {self.low:g} and {self.high:g}")
        if self.whole and number != int(number):
            raise UserError(f"{self.words}: {text} is not a whole number")
        return int(number) if self.whole else number


def controls_of(
    settings: Mapping[str, Any], rate: float | None, axes: Mapping[str, Sequence[str]] | None = None
) -> list[Control]:
    """Return the controls of a scenario. `rate` is the unmodified arrival rate of its trace in requests per second, or
    None if unknown. `axes` are the values of a sweep's axes as text: they become choices, and an axis without a control
    gets a new choice control."""
    own = _controls(Scenario.of(settings), rate)
    values = {key: tuple(dict.fromkeys(found)) for key, found in (axes or {}).items()}
    found = [replace(c, choices=(*dict.fromkeys((*c.choices, *values.pop(c.key))),)) if c.choices and c.key in values
             else c for c in own]  # fmt: skip
    known = {control.key for control in own}
    return [
        *found,
        *(Control(key, key, "Axes of the sweep", _value(settings, key, several), (*dict.fromkeys((*several, _value(
            settings, key, several))),), yaml=True) for key, several in values.items() if key not in known),
    ]  # fmt: skip


def _value(settings: Mapping[str, Any], key: str, several: Sequence[str]) -> str:
    outer, _, inner = key.partition(".")
    section = settings.get(outer)
    value = section.get(inner) if inner and isinstance(section, Mapping) else section
    return several[0] if value is None or isinstance(value, Mapping) else str(value)


def _controls(s: Scenario, rate: float | None) -> list[Control]:
    limits, scheduler, drafts = dict(s.slo), _name(s.scheduler), _name(s.speculation)
    return [
        Control("rate", "Rate", "Load", "" if rate is None else f"{rate:.4g}", low=1e-3, high=1e5, unit="requests/s"),
        Control("requests", "Requests", "Load", str(s.requests), low=1, high=max(MOST_REQUESTS, s.requests or 0),
                whole=True),
        Control("model", "Model", "Deployment", s.model, _with(bundled_models(), s.model)),
        Control("gpu", "GPU", "Deployment", s.gpu, _with(gpu_names(), s.gpu)),
        Control("tp", "Tensor parallel", "Deployment", str(s.tp), _with(TP, str(s.tp))),
        Control("replicas", "Replicas", "Deployment", str(s.replicas), low=1, high=64, whole=True),
        Control("dtype", "Weights", "Deployment", s.dtype, _with(DTYPES, s.dtype)),
        Control("scheduler", "Scheduler", "Policies", scheduler, _with(schedulers.names(), scheduler)),
        Control("scheduler.max_num_seqs", "Sequences at once", "Policies",
                str(s.scheduler.get("max_num_seqs", "")), low=1, high=65536, whole=True),
        Control("kv", "KV cache", "Policies", _name(s.kv), _with(kv_allocators.names(), _name(s.kv))),
        Control("engine.gpu_memory_utilization", "Share of GPU memory", "Policies",
                f"{s.engine.gpu_memory_utilization:g}", low=0.05, high=1.0, logarithmic=False),
        Control("speculation", "Drafts", "Policies", drafts, _with(("none", *speculators.names()), drafts)),
        Control("speculation.k", "Draft tokens", "Policies", str(s.speculation.get("k", "")), low=1, high=32,
                whole=True),
        Control("slo.ttft", "TTFT at most", "Limits", _limit(limits, "ttft"), low=1, high=1e6, unit="ms"),
        Control("slo.tpot", "TPOT at most", "Limits", _limit(limits, "tpot"), low=0.1, high=1e5, unit="ms"),
    ]  # fmt: skip


def _name(policy: Mapping[str, Any]) -> str:
    return str(policy["name"])


def _limit(limits: Mapping[str, float], name: str) -> str:
    return f"{limits[name]:g}" if name in limits else ""


def _with(choices: Any, own: str) -> tuple[str, ...]:
    """Return the choices plus the scenario's own value, which may be a file."""
    return tuple(dict.fromkeys((*choices, own)))


def changes(controls: Sequence[Control], state: State) -> dict[str, Any]:
    """Return the settings that a state changes, by key, in the order of the controls. Raise UserError for a key or
    value that no control has."""
    known = {control.key: control for control in controls}
    if unknown := sorted(set(state) - set(known)):
        raise UserError(f"there is no control named {shown(unknown[0])}")
    found = {key: known[key].read(state[key]) for key in known if key in state and state[key] != known[key].value}
    if "speculation.k" in found and (found.get("speculation") or known["speculation"].value) == "none":
        found.pop("speculation.k")
    return found


def changed(settings: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with the changes applied."""
    result = dict(settings)
    if isinstance(result.get("slo"), str):
        result["slo"], percentiles = split_slo(parse_slo(result["slo"]))
        result |= {"slo_percentiles": percentiles} if percentiles else {}
    limits = {key: value for key, value in found.items() if key.startswith("slo.")}
    whole = {key: value for key, value in found.items() if "." not in key}
    parts = {key: value for key, value in found.items() if "." in key and key not in limits and value is not None}
    unset = {key: value for key, value in found.items() if "." in key and key not in limits and value is None}
    for key in unset:
        outer, _, inner = key.partition(".")
        section = result.get(outer)
        if outer in POLICIES and section is not None:
            section = policy_settings(section)
        if isinstance(section, Mapping):
            result[outer] = {name: value for name, value in section.items() if name != inner}
    result = with_parts({**result, **whole}, parts, Scenario)
    if not limits:
        return result
    slo = {**(result.get("slo") or {}), **{key.removeprefix("slo."): value for key, value in limits.items()}}
    result["slo"] = {name: value for name, value in slo.items() if value is not None}
    percentiles = result.get("slo_percentiles") or {}
    return result | {"slo_percentiles": {name: p for name, p in percentiles.items() if name in result["slo"]}}


def command(words: Sequence[str], found: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return the command line of a run: the `words` of the original scenario, and options for the changes. `after` is
    the settings with the changes applied."""
    options = []
    whole_slo = any(key.startswith("slo.") and value is None for key, value in found.items())
    for key, value in found.items():
        if whole_slo and key.startswith("slo."):
            continue
        if value is None or key not in _OPTIONS:
            options += ["--set", f"{key}={'null' if value is None else value}"]
        else:
            options += [f"--{key.replace('_', '-')}", f"{value:g}" if isinstance(value, float) else str(value)]
    if whole_slo:  # options override --set
        words = [word for at, word in enumerate(words) if "--slo" not in (word, words[at - 1] if at else "")]
        for key in ("slo", "slo_percentiles"):
            options += ["--set", f"{key}={json.dumps(after.get(key, {}))}"]
    return shlex.join(["servesim", "run", *words, *options])


_OPTIONS = frozenset(
    ("rate", "requests", "model", "gpu", "tp", "replicas", "dtype", "scheduler", "scheduler.max_num_seqs", "kv",
     "engine.gpu_memory_utilization", "speculation", "speculation.k", "slo.ttft", "slo.tpot")
)  # fmt: skip


def words_of(settings: Mapping[str, Any]) -> list[str]:
    """Return settings as command-line options."""
    return [word for key, value in settings.items() for word in _option(key, value)]


def _option(key: str, value: Any) -> Iterator[str]:
    if value is None:
        return
    if isinstance(value, list):
        for one in value:
            yield from _option(key, one)
    elif isinstance(value, Mapping):
        if "name" in value:
            yield from (f"--{key.replace('_', '-')}", str(value["name"]))
        for name, inner in value.items():
            if name != "name":
                yield from ("--set", f"{key}.{name}={inner}")
    elif "." in key:
        yield from ("--set", f"{key}={value}")
    else:
        yield from (f"--{key.replace('_', '-')}", str(value))
