"""Presets: fitted twins of public traces, each a JSON file of statistics that `fit.py` writes.

A twin reproduces the original's arrivals (rate over time, burstiness at 1, 10 and 60 s), the joint distribution of
prompt and output lengths, and, for conversation traces, the tree of shared prefixes. Each seed gives a different twin
with the same fidelity. No row of an original is included.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from servesim.errors import UserError, suggest
from servesim.parsing import pairs
from servesim.workload.trace import Content, Ints, Trace

from ..spec import to_float
from .arrivals import ArrivalFit
from .servegen import ServeGenFit
from .tables import JointTable
from .tree import TreeFit

NUMBERS = ("scale", "start", "seconds")
"""Parameters of a preset of a day of traffic."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Fitted statistics of one original."""

    name: str
    original: dict[str, Any]  # file, sha256, source, licence, citation
    arrivals: ArrivalFit
    lengths: JointTable | None  # for traces without content
    tree: TreeFit | None  # for traces with content

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Fit:
        lengths = JointTable.from_json(data["lengths"]) if "lengths" in data else None
        tree = TreeFit.from_json(data["tree"]) if "tree" in data else None
        return cls(data["name"], data["original"], ArrivalFit.from_json(data["arrivals"]), lengths, tree)

    def draw(self, requests: int | None = None, seed: int = 0) -> Trace:
        """Draw a twin: by default with the original's number of requests, or with `requests` requests, which may be
        fewer or may take more than one lap of the original."""
        n = self.arrivals.requests if requests is None else requests
        if n < 1:
            raise UserError(f"preset {self.name}: requests is {n} but must be at least 1")
        prompt, output, content = self._draw_lengths(n, seed)
        cite = self.original.get("citation", "")
        note = f"fitted twin of {self.original['file']} ({cite}), seed {seed}"
        return Trace.from_lengths(
            f"preset:{self.name}", self.arrivals.draw(n, seed), prompt, output, content=content, notes=(note,)
        )

    def draw_lengths(self, requests: int, seed: int) -> tuple[Ints, Ints]:
        """Draw the prompt and output lengths of rows 0..requests-1, as in the twin."""
        return self._draw_lengths(requests, seed)[:2]

    def _draw_lengths(self, requests: int, seed: int) -> tuple[Ints, Ints, Content | None]:
        if self.tree is not None:
            return self.tree.draw(requests, seed)
        assert self.lengths is not None
        columns = self.lengths.draw(requests, seed, "preset")
        return columns["prompt"], columns["output"], None


def preset_names() -> list[str]:
    """Return the names of all presets, sorted."""
    found = (entry.name for entry in files(__name__).iterdir())
    return sorted(name.removesuffix(".json") for name in found if name.endswith(".json"))


@lru_cache(maxsize=16)
def load_fit(name: str) -> Fit | ServeGenFit:
    """Load the fitted statistics of a preset."""
    if name not in preset_names():
        raise UserError(f"unknown preset {name!r}{suggest(name, preset_names())}")
    data = json.loads((files(__name__) / f"{name}.json").read_text(encoding="utf-8"))
    return ServeGenFit.from_json(data) if "servegen" in data else Fit.from_json(data)


def load_preset(spec: str, requests: int | None = None, seed: int = 0) -> Trace:
    """Draw a twin of a public trace; equal arguments give equal twins. `spec` is the name of the preset; for a preset
    of a day of traffic, it may be followed by `:scale=0.02,start=36000,seconds=3600`."""
    name, _, rest = spec.partition(":")
    fit = load_fit(name)
    if isinstance(fit, ServeGenFit):
        return fit.draw(requests, seed, **_numbers(name, rest))
    if rest:
        raise UserError(f"preset {name} has no parameters, but {rest.split('=')[0]!r} was specified")
    return fit.draw(requests, seed)


def _numbers(name: str, text: str) -> dict[str, float]:
    values: dict[str, float] = {}
    for key, value in pairs(f"preset {name}", text).items():
        if key not in NUMBERS:
            raise UserError(f"preset {name}: unknown parameter {key!r}{suggest(key, NUMBERS)}")
        values[key] = to_float(f"preset {name}: {key}", value)
    return values
