"""Quantile tables: the marginal distribution of prompt lengths, and the distribution of output lengths (or another
column) given the prompt length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servesim import draws
from servesim.workload.trace import Ints

Floats = NDArray[np.float64]

PROMPT_LEVELS = np.unique(np.concatenate((np.linspace(0, 1, 201), [0.001, 0.002, 0.992, 0.997, 0.998, 0.999, 0.9995])))
GIVEN_LEVELS = np.unique(np.concatenate((np.linspace(0, 1, 41), [0.01, 0.985, 0.99, 0.995])))


@dataclass(frozen=True, slots=True)
class GivenPrompt:
    """Quantiles of a column in each of the equal-sized prompt bins, shortest prompts first: table[bin, level]."""

    table: Floats

    @classmethod
    def fit(cls, prompt: Ints, column: Ints, bins: int) -> GivenPrompt:
        parts = np.array_split(column[np.argsort(prompt, kind="stable")], bins)
        return cls(np.array([np.quantile(part, GIVEN_LEVELS) for part in parts]))

    def draw(self, prompt_u: Floats, u: Floats) -> Ints:
        """Draw integers by inverse transform, given the uniform draws from which the prompt lengths were computed."""
        bins = np.minimum((prompt_u * len(self.table)).astype(np.int64), len(self.table) - 1)
        values = np.empty(len(u))
        for b in np.unique(bins):
            here = bins == b
            values[here] = np.interp(u[here], GIVEN_LEVELS, self.table[b])
        return np.rint(values).astype(np.int64)


@dataclass(frozen=True, slots=True)
class JointTable:
    """Quantiles of the prompt length and, for each prompt bin, those of the output length and of other columns."""

    prompt: Floats
    given: dict[str, GivenPrompt]

    @classmethod
    def fit(cls, prompt: Ints, bins: int, **columns: Ints) -> JointTable:
        given = {name: GivenPrompt.fit(prompt, column, bins) for name, column in columns.items()}
        return cls(np.quantile(prompt, PROMPT_LEVELS), given)

    def draw(self, count: int, seed: int, purpose: str) -> dict[str, Ints]:
        """Draw columns by name for draws 0..count-1: `prompt` (stratified, because its tail carries the load) and the
        columns that depend on it."""
        prompt_u = draws.stratified(seed, f"{purpose} prompt", count)
        rows = np.arange(count)
        out = {"prompt": np.rint(np.interp(prompt_u, PROMPT_LEVELS, self.prompt)).astype(np.int64)}
        for name, table in self.given.items():
            out[name] = table.draw(prompt_u, draws.uniform(seed, f"{purpose} {name}", rows))
        return out

    def to_json(self) -> dict[str, Any]:
        given = {name: np.round(g.table, 1).tolist() for name, g in self.given.items()}
        return {"prompt": np.round(self.prompt, 1).tolist(), "given": given}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> JointTable:
        given = {name: GivenPrompt(np.array(table)) for name, table in data["given"].items()}
        return cls(np.array(data["prompt"]), given)
