"""Prices of GPUs by name, as text, mapping or file."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servesim.errors import UserError, shown
from servesim.parsing import pairs
from servesim.untrusted import read_text, read_yaml

if TYPE_CHECKING:
    from servesim.hardware import Gpu

MOST_USD = 1e6


def prices_of(given: Any) -> dict[str, float]:
    """Return $ per GPU hour by GPU. `given`: `h100=2.2,h200=3.1`, a mapping, or the path of a YAML file of such a
    mapping or of a CSV file whose rows are GPU and price; UserError for names of no GPU and prices that are none."""
    if isinstance(given, str):
        path = Path(given)
        if path.suffix in (".yaml", ".yml"):
            given = read_yaml(path, "prices")
        elif path.suffix == ".csv":
            given = _from_csv(path)
        else:
            given = pairs("price", given)
    if not isinstance(given, Mapping):
        raise UserError(f"price is {shown(given)}: write h100=2.2,h200=3.1, or name a YAML or CSV file of them")
    return {str(name): _usd(str(name), value) for name, value in given.items()}


def price_of(gpu: Gpu, prices: Mapping[str, float], usd_per_gpu_hour: float | None) -> float:
    """Return the price of a GPU hour: the one for all GPUs, else the one by name, else the data sheet's assumption."""
    return usd_per_gpu_hour if usd_per_gpu_hour is not None else prices.get(gpu.name, gpu.usd_per_hour)


def _usd(name: str, value: Any) -> float:
    try:
        usd = float(value)
    except (TypeError, ValueError, OverflowError):
        usd = -1.0
    if isinstance(value, bool) or not 0 <= usd <= MOST_USD:
        raise UserError(f"price of {name} is {shown(value)}, must be $ per GPU hour, from 0 to {MOST_USD:,.0f}")
    return usd


def _from_csv(path: Path) -> dict[str, str]:
    rows = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(read_text(path, "yaml"))) if row]
    wrong = next((row for row in rows if len(row) != 2), None)
    if wrong is not None or not rows:
        raise UserError(f"prices {path}: rows of a GPU and its $ per hour are needed, such as h100,2.2")
    head = not rows[0][1][:1].isdecimal()  # a header
    return dict(rows[head:])
