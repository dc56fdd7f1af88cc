"""Prices of GPUs: by the hour, or reserved for some GPUs and on demand for those above (`8@1.9+2.99`).

Reserved GPUs are paid for all the time, whether a deployment uses them or not, but only by deployments on that GPU.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from servesim.errors import UserError, shown
from servesim.parsing import pairs
from servesim.untrusted import read_text, read_yaml

if TYPE_CHECKING:
    from servesim.hardware import Gpu

MOST_USD = 1e6
"""Maximum price of a GPU-hour, in dollars."""
MOST_RESERVED = 1_000_000
"""Maximum number of reserved GPUs."""
GpuPrice = float | str
"""Price of a GPU-hour in dollars, or text such as `8@1.9+2.99`: 8 reserved GPUs at $1.9, and $2.99 for each above."""
_RESERVED = re.compile(r"\s*([0-9]{1,7})\s*@([^@+]+)\+([^@+]+)")


class Reserved(NamedTuple):
    """Price with reserved GPUs, in dollars per GPU-hour."""

    gpus: int
    usd: float
    on_demand: float

    def __str__(self) -> str:
        return f"{self.gpus}@{self.usd:.12g}+{self.on_demand:.12g}"


def prices_of(given: Any) -> dict[str, GpuPrice]:
    """Return the prices by GPU. `given`: `h100=2.2,h200=8@1.9+2.99`, a mapping, or the path of a YAML file of such a
    mapping or of a CSV file with rows of GPU and price; raise UserError for invalid prices."""
    if isinstance(given, str):
        path = Path(given)
        if path.suffix in (".yaml", ".yml"):
            given = read_yaml(path, "prices")
        elif path.suffix == ".csv":
            given = _from_csv(path)
        else:
            given = pairs("price", given)
    if not isinstance(given, Mapping):
        raise UserError(
            f"price {shown(given)} is not valid: write h100=2.2,h200=3.1, or use a YAML or CSV file of prices"
        )
    return {str(name): _price(str(name), value) for name, value in given.items()}


def reserved_of(price: GpuPrice) -> Reserved | None:
    """Return a valid price with reserved GPUs, or None for a price by the hour."""
    found = _RESERVED.fullmatch(price) if isinstance(price, str) else None
    return Reserved(int(found[1]), float(found[2]), float(found[3])) if found else None


def price_of(
    gpu: Gpu, prices: Mapping[str, GpuPrice], usd_per_gpu_hour: float | None, gpus: int | None = None
) -> float:
    """Return the price of a GPU-hour: the mean over a deployment of `gpus` GPUs if some are reserved, else the price
    for all GPUs if there is one, else the price by name, else the data sheet's assumption."""
    price = prices.get(gpu.name, gpu.usd_per_hour)
    reserved = reserved_of(price)
    if reserved is not None and gpus is not None:
        return (reserved.gpus * reserved.usd + max(gpus - reserved.gpus, 0) * reserved.on_demand) / gpus
    if usd_per_gpu_hour is not None:
        return usd_per_gpu_hour
    return float(price) if reserved is None else reserved.on_demand


def paid(reserved: Reserved, ups: Iterable[tuple[float, float, float]], since: float, until: float) -> float:
    """Return what GPUs cost between two times, in dollars per GPU-hour times the unit of time. `ups`: from when until
    when some GPUs are up, and how many."""
    changes: dict[float, float] = {since: 0.0, until: 0.0}
    for start, end, gpus in ups:
        start, end = max(start, since), min(end, until)
        if start < end:
            changes[start] = changes.get(start, 0.0) + gpus
            changes[end] = changes.get(end, 0.0) - gpus
    above, up, last = 0.0, 0.0, since
    for at in sorted(changes):
        above += max(up - reserved.gpus, 0.0) * (at - last)
        up, last = up + changes[at], at
    return reserved.gpus * reserved.usd * (until - since) + above * reserved.on_demand


def _price(name: str, value: Any) -> GpuPrice:
    if not isinstance(value, str) or not {*"@+"} & {*value.replace("e+", "")}:
        return _usd(name, value)
    found = _RESERVED.fullmatch(value)
    if found is None or not 1 <= int(found[1]) <= MOST_RESERVED:
        raise UserError(
            f"price of {name} is {shown(value)} but must be $ per GPU hour, or GPUs that are reserved, their price and "
            "that of others, as in 8@1.9+2.99"
        )
    return str(Reserved(int(found[1]), _usd(name, found[2]), _usd(name, found[3])))


def _usd(name: str, value: Any) -> float:
    try:
        usd = float(value)
    except (TypeError, ValueError, OverflowError):
        usd = -1.0
    if isinstance(value, bool) or not 0 <= usd <= MOST_USD:
        raise UserError(f"price of {name} is {shown(value)} but must be $ per GPU hour, from 0 to {MOST_USD:,.0f}")
    return usd


def _from_csv(path: Path) -> dict[str, str]:
    rows = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(read_text(path, "yaml"))) if row]
    wrong = next((row for row in rows if len(row) != 2), None)
    if wrong is not None or not rows:
        raise UserError(f"prices {path}: each row must be a GPU and its $ per hour, such as h100,2.2")
    head = not rows[0][1][:1].isdecimal()  # a header
    return dict(rows[head:])
