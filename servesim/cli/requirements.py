"""Requirements that decide whether a run or an experiment succeeds, such as `ttft_p99<=300` and
`slo_attainment>=0.99`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from servesim.errors import UserError, shown, suggest

_FORM = re.compile(r"\s*(?P<name>[a-z][a-z0-9_]*)\s*(?P<sign><=|>=|<|>)\s*(?P<number>[^\s%a-z]+(?:e[+-]?\d+)?)"
                   r"\s*(?P<unit>%|ms|s|)\s*", re.IGNORECASE)  # fmt: skip
_SIGNS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_SCALES = {
    "": {"": 1.0},
    "share": {"": 1.0, "%": 0.01},
    "ms": {"": 1.0, "ms": 1.0, "s": 1000.0},
    "s": {"": 1.0, "s": 1.0, "ms": 1e-3},
}


class Requirement(NamedTuple):
    """A requirement on one metric."""

    text: str
    """The requirement as typed."""
    name: str
    sign: str
    bound: float
    """Bound in the metric's unit."""
    unit: str = ""
    """Unit of the metric."""

    @classmethod
    def of(cls, text: str, units: Mapping[str, str]) -> Requirement:
        """Parse `METRIC>=VALUE`, with the value in ms for latencies and as a fraction of 1 for shares, or with an
        explicit unit (s, ms or %). `units`: the unit of each known metric by name."""
        found = _FORM.fullmatch(text)
        if found is None:
            raise UserError(
                f"--require {shown(text)}: write METRIC>=VALUE, such as slo_attainment>=0.99 or ttft_p99<=1s"
            )
        name = found["name"].lower()
        if name not in units:
            raise UserError(f"--require {text}: unknown metric {name!r}{suggest(name, units)}")
        scales = _SCALES.get(units[name], _SCALES[""])
        try:
            bound = float(found["number"]) * scales[found["unit"].lower()]
        except (ValueError, KeyError):
            raise UserError(
                f"--require {text}: the value must be a number{f', in {units[name]}' if units[name] else ''}"
            ) from None
        if bound != bound:
            raise UserError(f"--require {text}: the value must be a number")
        return cls(text, name, found["sign"], bound, units[name])

    def holds(self, value: float | None) -> bool:
        """Return whether a value meets the requirement; a missing value does not."""
        return value is not None and _SIGNS[self.sign](value, self.bound)

    def amount(self, value: float) -> str:
        """Return a value of the metric with its unit: 117.2 ms, 96.4 %, $0.21."""
        if self.unit == "share":
            return f"{100 * value:.6g} %"
        return f"${value:.6g}" if self.unit == "$" else f"{value:.6g} {self.unit}".strip()


def failures(requirements: Iterable[Requirement], values: Mapping[str, Any], who: str = "") -> list[str]:
    """Return the unmet requirements, one line each. `values`: values by metric."""
    lines = []
    for one in requirements:
        value = values.get(one.name)
        if not one.holds(value):
            said = "it has no value" if value is None else f"it is {one.amount(value)}"
            lines.append(f"{f'{who}: ' if who else ''}required {one.text}, {said}")
    return lines
