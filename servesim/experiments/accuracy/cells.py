"""Measured serving cells: mean TTFT and TPOT of one server at one pair of lengths and one number of clients."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from servesim.errors import UserError
from servesim.experiments.recording import RecordedRun

PACKAGE, SAMPLE, CONFIGS = "aiconfigurator_core", "systems/silicon_sample.csv", "model_configs"


@dataclass(frozen=True)
class Side:
    """The servers of one side where prefill and decode are apart, as labelled."""

    workers: int
    tp: int
    dp: int
    """Copies of attention, each with requests of its own."""
    moe_tp: int
    ep: int

    @property
    def gpus(self) -> int:
        """GPUs of all of them."""
        return self.workers * max(self.tp * self.dp, self.moe_tp * self.ep)


@dataclass(frozen=True)
class Cell:
    """One measured cell. Counts are 0 and texts empty where the label is missing; times are means in ms."""

    id: str
    source: str
    """The place where it was measured, by its label."""
    engine: str
    version: str
    model: str
    gpu: str
    precision: str
    weights: str
    """Format of the linear layers as labelled."""
    mode: str
    """`agg`: one engine; `disagg`: prefill and decode apart."""
    isl: int
    osl: int
    """Nominal prompt and output length, tokens."""
    concurrency: int
    """Clients in closed loop; of an open loop the mean in flight."""
    tp: int
    pp: int
    dp: int
    """Copies of attention, each with requests of its own."""
    moe_tp: int
    ep: int
    ttft_ms: float
    tpot_ms: float
    workers: str = ""
    """Where prefill and decode are apart: their numbers, sizes and parallelism as labelled."""
    sides: tuple[Side, Side] | None = None
    """Where prefill and decode are apart and their numbers are stated: prefill, decode."""
    flags: tuple[tuple[str, str], ...] | None = None
    """Flags of the engine's command and their values, without parallelism; None if there is no command."""
    requests: int = 0
    """Number of its requests, if its command or the cell states them; 0: as many as its source sends."""
    output_rate: float = 0.0
    """Output tokens/s of the server; 0: those of a closed loop with the times measured."""
    settings: tuple[tuple[str, Any], ...] | None = None
    """Settings the server was found to run with (`servesim measure`), dotted as in a scenario; None if not stated."""
    run: RecordedRun | None = field(default=None, compare=False, repr=False)
    """The recorded run the cell sums up; None: a line of a table."""

    @property
    def gpus(self) -> int:
        """GPUs of the server; those its experts are spread over where these are more. Of both sides where they are
        apart."""
        if self.sides is not None:
            return sum(side.gpus for side in self.sides)
        return max(self.tp * max(self.dp, 1), self.moe_tp * self.ep) * max(self.pp, 1)

    @property
    def product(self) -> tuple[str, ...]:
        """The product, whatever its size: engine, version, model, GPU, formats."""
        return (self.engine, self.version, self.model, self.gpu, self.precision, self.weights, self.mode)

    @property
    def deployment(self) -> tuple[str | int, ...]:
        """One server: a product and its parallelism, at all lengths and concurrencies."""
        return (*self.product, self.tp, self.pp, self.dp, self.moe_tp, self.ep, self.workers)

    @property
    def place(self) -> tuple[str | int, ...]:
        """Key that repeats of the measurement share."""
        return (*self.deployment, self.isl, self.osl, self.concurrency)

    @property
    def name(self) -> str:
        """A line for progress."""
        lengths = f"{self.isl}/{self.osl}"
        return f"{self.engine} {self.version} {self.model} {self.gpu} tp{self.tp} {lengths} C={self.concurrency}"


def sample_file() -> Path:
    """Return the table of measured cells inside an installed aiconfigurator-core; UserError without it."""
    folder = package_folder()
    if folder is None or not (folder / SAMPLE).is_file():
        raise UserError(
            "no measured cells: aiconfigurator-core 0.12.0 is not installed and no files are given; pip install "
            '"servesim[silicon]", or name your own table or recordings'
        )
    return folder / SAMPLE


def package_folder() -> Path | None:
    """Return the folder of the installed aiconfigurator-core, which is not imported; None without it."""
    spec = find_spec(PACKAGE)
    return Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None
