"""GPUs with their data sheets, from `gpus.yaml`."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from servesim.errors import UserError, shown, suggest
from servesim.parsing import split_changes
from servesim.shipped import shipped_yaml
from servesim.untrusted import read_yaml

_MAY_BE_ZERO = frozenset(("usd_per_hour", "nvlink_bandwidth"))
_SLOWEST = 1e6
"""Lowest allowed rate in FLOP/s or bytes/s; below it, the duration of a step in ns may exceed 64 bits."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. Bytes, bytes per second, FLOP per second; link bandwidths in one direction."""

    name: str
    description: str
    memory_bytes: int
    """Total memory as reported by torch, which vLLM multiplies by `gpu_memory_utilization`."""
    bandwidth: float
    flops: dict[str, float]
    """Dense peak by compute dtype; missing dtypes have no hardware support."""
    nvlink_bandwidth: float
    """NVLink bandwidth, or 0 without NVLink."""
    pcie_bandwidth: float
    usd_per_hour: float
    """Assumed price, not a quote."""
    tables: str | None
    """Name of the kernel tables that price it; None: roofline formula."""

    @classmethod
    def load(cls, name: str) -> Gpu:
        """Return the GPU called `name`, or the data sheet in a YAML file with one GPU's fields; changes may follow
        (`h100:usd_per_hour=2.2`)."""
        name, changes = split_changes(name)
        if changes:
            return _changed(cls.load(name), changes)
        if name.endswith((".yaml", ".yml")):
            return _from_file(Path(name))
        known = _gpus()
        key = name.lower()
        if key not in known:
            raise UserError(_unknown(name))
        return cls(name=key, **known[key])

    @property
    def link_bandwidth(self) -> float:
        """Bandwidth between GPUs of one node: NVLink, or PCIe without it."""
        return self.nvlink_bandwidth or self.pcie_bandwidth


def _unknown(name: str) -> str:
    """Return an error message for a name without a data sheet. Suggest a GPU only if the name is another spelling of
    it, not if it merely looks similar."""
    same = [known for known in _gpus() if _spelling(known).search(name.lower())]
    if same:
        return f'unknown GPU {shown(name)} (did you mean "{max(same, key=len)}"?)'
    return (
        f"unknown GPU {shown(name)}: no data sheet is bundled for it (bundled: {', '.join(gpu_names())}); describe "
        "the GPU in a YAML file (docs/your-gpu.md) and use --gpu my-gpu.yaml"
    )


def _spelling(known: str) -> re.Pattern[str]:
    """Return a pattern that matches a GPU name as a separate word, with any separators between its characters: "RTX PRO
    6000", but not "GH200" for h200."""
    return re.compile(r"(?<![a-z0-9])" + r"[^a-z0-9]*".join(c for c in known if c.isalnum()) + r"(?![a-z0-9])")


def gpu_names() -> list[str]:
    """Return the names of all known GPUs."""
    return sorted(_gpus())


@cache
def _gpus() -> dict[str, dict[str, Any]]:
    loaded: dict[str, dict[str, Any]] = shipped_yaml("servesim.hardware", "gpus.yaml")
    return loaded


def _changed(gpu: Gpu, changes: dict[str, str]) -> Gpu:
    """Return the GPU with fields of its data sheet changed; raise UserError for an unknown field."""
    parts = {field.name for field in fields(Gpu)} - {"name", "description", "flops"}
    parts |= {f"flops.{dtype}" for dtype in gpu.flops}
    update: dict[str, Any] = {}
    for key, text in changes.items():
        if key not in parts:
            raise UserError(f"gpu.{key}: not a field of the data sheet of {gpu.name}{suggest(key, parts)}")
        if key == "tables":
            update[key] = _tables(None if text in ("null", "none") else text, f"gpu.tables of {gpu.name}")
            continue
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if wrong := _wrong(key, number):
            raise UserError(f"gpu.{key} is {shown(text)} but {wrong}")
        if key.startswith("flops."):
            update["flops"] = {**update.get("flops", gpu.flops), key.removeprefix("flops."): number}
        else:
            update[key] = int(number) if key == "memory_bytes" else number
    return replace(gpu, **update)


def _wrong(key: str, number: float) -> str:
    """Return the requirement that a number in a data sheet does not meet; empty if it meets all."""
    if key in _MAY_BE_ZERO and number == 0:
        return ""
    if not 0 < number < 1e30:
        return f"must be a finite number {'of at least' if key in _MAY_BE_ZERO else 'above'} 0"
    if number < _SLOWEST and key.startswith("flops.") | key.endswith("bandwidth"):
        return f"must be at least {_SLOWEST:g} per second"
    return ""


def _from_file(path: Path) -> Gpu:
    sheet = read_yaml(path, "GPU data sheet")
    wanted = {field.name for field in fields(Gpu)} - {"name"}
    given = set(sheet) if isinstance(sheet, dict) else set()
    if given != wanted:
        raise UserError(
            f"GPU data sheet {path}: its keys must be {', '.join(sorted(wanted))}"
            + "".join(f"; {shown(key)} is unknown" for key in sorted(given - wanted, key=str)[:1])
            + "".join(f"; {key!r} is missing" for key in sorted(wanted - given)[:1])
        )
    try:  # in YAML 1.1 `1e9` is a string
        numbers = {k: float(v) for k, v in sheet.items() if k not in ("description", "flops", "memory_bytes", "tables")}
        flops = {str(dtype): float(rate) for dtype, rate in sheet["flops"].items()}
        memory = int(float(sheet["memory_bytes"]))
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        raise UserError(f"GPU data sheet {path}: a value is not a number: {error}") from None
    rates = {f"flops.{dtype}": rate for dtype, rate in flops.items()}
    for key, number in {**numbers, **rates, "memory_bytes": memory}.items():
        if wrong := _wrong(key, number):
            raise UserError(f"GPU data sheet {path}: {shown(key)} is {number} but {wrong}")
    tables = _tables(sheet["tables"], f"GPU data sheet {path}: tables")
    return Gpu(path.stem, str(sheet["description"]), memory, flops=flops, tables=tables, **numbers)


def _tables(name: Any, where: str) -> str | None:
    """Return the name of bundled kernel tables, or None; raise UserError if no tables have that name."""
    bundled = sorted({sheet["tables"] for sheet in _gpus().values() if sheet["tables"] is not None})
    if name is None or name in bundled:
        return name  # type: ignore[no-any-return]
    raise UserError(
        f"{where} is {shown(name)}: no kernel tables with this name are bundled (bundled: {', '.join(bundled)}); use "
        "null to price by formula, or --kernel-tables FOLDER for your own tables"
    )
