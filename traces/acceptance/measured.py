"""Acceptance measured on a real model with `servesim calibrate acceptance`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from servesim.contracts import Request, acceptance_models
from servesim.draws import uniform_one
from servesim.errors import UserError, suggest
from servesim.untrusted import parse_yaml, read_text

from . import ByPosition, luck, running_product

_TABLES = "servesim.calibrate.tables"
_ENOUGH = 10
"""Minimum number of times a position must have been reached for its own rate to be used."""


@dataclass(frozen=True)
class MeasuredParams:
    """Choice of measurement."""

    table: str = "smollm2-ngram"
    """Name of a table that ships with servesim (calibrate/tables/acceptance), or path of a file."""
    domain: str = ""
    """Domain of every request; if empty, a domain is drawn for each row, weighted by the table's prompt counts."""


@dataclass(frozen=True)
class Rates:
    """One domain's rates by draft position; the last value applies to all later positions."""

    weight: float
    conditional: tuple[float, ...]
    """Chance that a draft is accepted, given that it is proposed and all previous ones are accepted."""
    found: tuple[float, ...]
    """Chance that a step has a draft at the position."""

    @classmethod
    def of(cls, counts: dict[str, Any]) -> Rates:
        """Build from a table's counts. A position reached fewer than ten times gets the chance of the last position
        reached at least ten times."""
        accepted, reached, proposed = (counts[name] for name in ("accepted", "reached", "proposed"))
        pairs = enumerate(zip(accepted, reached, strict=True))
        chances = tuple(hits / tries for j, (hits, tries) in pairs if tries >= (1 if j == 0 else _ENOUGH))
        steps = max(counts["steps"], 1)
        return cls(counts["prompts"], chances or (0.0,), tuple(count / steps for count in proposed))

    def has(self, j: int) -> float:
        """Return the chance that a step has draft j (from 0)."""
        return self.found[min(j, len(self.found) - 1)]

    def accepted(self, k: int) -> list[float]:
        """Return the mean number of accepted drafts per step at positions 1 to k."""
        return [run * self.has(j) for j, run in enumerate(running_product(self.conditional, k))]


@acceptance_models.register("measured")
class Measured(ByPosition):
    """Acceptance rates by position and the share of steps without a draft, by domain. The single draw of a step's
    output token determines whether the step has drafts, and how many. Steps are independent, unlike in copied text,
    where runs continue (see the model `copy`)."""

    Params = MeasuredParams
    params: MeasuredParams

    def __init__(self, params: MeasuredParams, seed: int) -> None:
        super().__init__(params, seed)
        self._domains = _read(params)
        self._of: dict[int, Rates] = {}

    def _domain(self, request: Request) -> Rates:
        found = self._of.get(request.row)
        if found is None:
            drawn = uniform_one(self.seed, "acceptance kind", request.row) * sum(d.weight for d in self._domains)
            for found in self._domains:
                drawn -= found.weight
                if drawn < 0.0:
                    break
            assert found is not None
            self._of[request.row] = found
        return found

    def conditional(self, request: Request) -> Sequence[float]:
        return self._domain(request).conditional

    def available(self, request: Request, position: int, k: int) -> int:
        rates, drawn = self._domain(request), luck(self.seed, "no draft", request.row, position)
        return next((j for j in range(k) if drawn >= rates.has(j)), k)

    def rates(self, k: int) -> list[float]:
        """Return acceptance rates per verification. Each domain is weighted by the number of steps that its outputs
        take, if outputs are equally long in all domains."""
        steps = [domain.weight / (1.0 + sum(domain.accepted(k))) for domain in self._domains]
        verifications = sum(n * domain.has(0) for n, domain in zip(steps, self._domains, strict=True))
        if not verifications:
            return [0.0] * k
        by_step = [[n * rate for rate in d.accepted(k)] for n, d in zip(steps, self._domains, strict=True)]
        return [sum(rates) / verifications for rates in zip(*by_step, strict=True)]


def _read(params: MeasuredParams) -> list[Rates]:
    content = parse_yaml(_text(params.table), f"acceptance measured: table {params.table}")
    try:
        if not str(content["format"]).startswith("servesim acceptance 1"):
            raise KeyError("format")
        domains = {str(name): Rates.of(counts) for name, counts in content["domains"].items()}
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError):
        raise UserError(f"{params.table}: not a table written by servesim calibrate acceptance") from None
    if params.domain and params.domain not in domains:
        hint = suggest(params.domain, domains)
        raise UserError(f"acceptance measured: {params.table} has no domain {params.domain!r}{hint}")
    return [domains[params.domain]] if params.domain else list(domains.values())


def _text(table: str) -> str:
    if table.endswith((".yaml", ".yml")):
        return read_text(Path(table), "yaml")
    folder = resources.files(_TABLES) / "acceptance"
    shipped = {p.name.removesuffix(".yaml"): p for p in folder.iterdir() if p.name.endswith(".yaml")}
    if table not in shipped:
        raise UserError(
            f"acceptance measured: there is no table {table!r}{suggest(table, shipped)}; the name of a table file "
            "must end in "
            ".yaml"
        )
    return shipped[table].read_text()
