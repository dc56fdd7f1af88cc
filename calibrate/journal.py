"""On-disk record of a profile: every measurement as it is made, and the kernel tables built from them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from servesim.calibrate.points import HELD_OUT, Point, table_row
from servesim.calibrate.timing import Timing
from servesim.cost.tables import write_table
from servesim.errors import UserError
from servesim.run.result_files import write_text

SETTINGS, POINTS, SHEET = "profile.json", "points.jsonl", "device.yaml"
FILES = {
    "gemm": "measured-gemm.parquet",
    "attention_decode": "measured-attention.parquet",
    "attention_prefill": "measured-attention.parquet",
    "attention_mixed": "measured-attention.parquet",
    "small": "measured-small.parquet",
}
"""Table file for each set of points; points of other sets stay only in the journal."""
_SAME = ("device", "kernels", "torch")
"""Settings that all measurements in a folder share."""


@dataclass
class Measured:
    """One measurement of a point."""

    point: Point
    kernel: str
    timing: Timing
    seconds: float
    """Seconds since the profile began."""
    repeat: bool = False
    suspect: bool = False
    """Whether the measurement was made while the clock drifted."""


@dataclass
class Journal:
    """Folder of a profile."""

    folder: Path
    settings: dict[str, Any] = field(default_factory=dict)
    grid: dict[str, Measured] = field(default_factory=dict)
    """Latest measurement of each key, excluding repeats."""
    repeats: list[Measured] = field(default_factory=list)

    @classmethod
    def open(cls, folder: Path, settings: Mapping[str, Any]) -> Journal:
        """Continue the profile in a folder or begin a new one; refuse a profile of another device or other kernels."""
        journal = cls(folder, dict(settings))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if (folder / SETTINGS).is_file():
                before = json.loads((folder / SETTINGS).read_text())
                for name in _SAME:
                    if before.get(name) != settings.get(name):
                        raise UserError(
                            f"{folder} holds a profile of {name} {before.get(name)}, not {settings.get(name)}: "
                            "give another --out"
                        )
                journal.settings = {**before, **settings, "runs": [*before["runs"], *settings["runs"]]}
            elif any(folder.iterdir()):
                raise UserError(f"{folder} contains other files but no profile: choose another --out")
            journal.save_settings()
        except OSError as error:
            raise UserError(f"--out {folder}: {error.strerror}") from error
        journal._read()
        return journal

    @classmethod
    def load(cls, folder: Path) -> Journal:
        """Load the profile in a folder."""
        path = folder / SETTINGS
        if not path.is_file():
            raise UserError(f"{folder} contains no profile ({SETTINGS})")
        journal = cls(folder, json.loads(path.read_text()))
        journal._read()
        return journal

    def _read(self) -> None:
        path = self.folder / POINTS
        if not path.is_file():
            return
        for line in path.read_text().splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue  # cut off during the write
            pieces = tuple(tuple(piece) for piece in row["point"].pop("pieces"))
            measured = Measured(Point(**row["point"], pieces=pieces), row["kernel"], Timing(**row["timing"]), row["at"])
            measured.repeat, measured.suspect = row["repeat"], row["suspect"]
            self._take(measured)

    def _take(self, measured: Measured) -> None:
        if measured.repeat:
            self.repeats.append(measured)
        else:
            self.grid[measured.point.key] = measured

    def add(self, measured: Measured) -> None:
        """Store a measurement and write it to disk immediately."""
        row = {
            "point": asdict(measured.point),
            "kernel": measured.kernel,
            "timing": asdict(measured.timing),
            "at": round(measured.seconds, 2),
            "repeat": measured.repeat,
            "suspect": measured.suspect,
        }
        with (self.folder / POINTS).open("a") as file:
            file.write(json.dumps(row) + "\n")
        self._take(measured)

    def save_settings(self) -> None:
        """Write the settings."""
        write_text(self.folder / SETTINGS, json.dumps(self.settings, indent=1, sort_keys=True) + "\n", "--out")

    def save_tables(self) -> dict[str, int]:
        """Write the kernel tables from the measurements so far; return the number of rows by file."""
        written = {}
        for name in dict.fromkeys(FILES.values()):
            rows = [m for m in self.grid.values() if FILES.get(m.point.set) == name and m.point.stage != HELD_OUT]
            if rows:
                write_table(self.folder / name, _columns(rows), self._provenance())
                written[name] = len(rows)
        if (sheet := self._sheet()) is not None:
            import yaml

            write_text(self.folder / SHEET, yaml.safe_dump(sheet, sort_keys=False), "--out")
        self.save_settings()
        return written

    def spread(self) -> list[float]:
        """Return the ratios of repeats to the first measurements of the same points, minus 1."""
        first = self.grid
        return [
            m.timing.median_us / first[m.point.key].timing.median_us - 1.0 for m in self.repeats if m.point.key in first
        ]

    def _provenance(self) -> dict[str, Any]:
        spread = self.spread()
        known = {k: v for k, v in self.settings.items() if v is not None}
        # error of a single time; the difference of two has twice the variance
        error = float(np.sqrt(np.mean(np.square(spread)) / 2)) if len(spread) >= 5 else None
        return {
            "project": "servesim calibrate profile",
            "project_version": _version(),
            **known,
            **({"relative_error": round(error, 5)} if error is not None else {}),
            "repeats": len(spread),
            "not_measured": "collectives (one GPU), QK-norm, copies over PCIe, host time",
        }

    def _sheet(self) -> dict[str, Any] | None:
        """Return a data sheet for a device that servesim does not know, built from its own measurements."""
        if self.settings.get("gpu"):
            return None
        gemms = [m for m in self.grid.values() if m.point.op == "gemm"]
        if not gemms or not self.settings.get("bandwidth"):
            return None
        best: dict[str, float] = {}
        for m in gemms:
            p = m.point
            kind = {"int4": "bf16"}.get(p.dtype, p.dtype)
            rate = 2.0 * (p.m or 0) * (p.n or 0) * (p.k or 0) / (m.timing.median_us * 1e-6)
            best[kind] = max(best.get(kind, 0.0), float(f"{rate:.3g}"))
        best.setdefault("bf16", max(best.values()))
        return {
            "description": f"{self.settings['device']}, rates measured by servesim calibrate profile",
            "memory_bytes": self.settings["memory_bytes"],
            "bandwidth": self.settings["bandwidth"],
            "flops": best,
            "nvlink_bandwidth": 0.0,
            "pcie_bandwidth": self.settings["bandwidth"] if self.settings["device_kind"] == "cpu" else 32e9,
            "usd_per_hour": 0.0,
            "tables": None,
        }


def _columns(rows: Iterable[Measured]) -> dict[str, list[Any]]:
    keys = [table_row(m.point) for m in rows]
    names = dict.fromkeys(name for key in keys for name in key)
    columns: dict[str, list[Any]] = {name: [key.get(name) for key in keys] for name in names}
    columns["kernel"] = [m.kernel for m in rows]
    columns["time_us"] = [m.timing.median_us for m in rows]
    columns["p10_us"] = [m.timing.p10_us for m in rows]
    columns["p90_us"] = [m.timing.p90_us for m in rows]
    columns["samples"] = [m.timing.samples for m in rows]
    return columns


def _version() -> str:
    import servesim

    return servesim.__version__
