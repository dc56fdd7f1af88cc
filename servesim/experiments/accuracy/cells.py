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
    """Servers of one side of a disaggregated deployment, as labeled."""

    workers: int
    tp: int
    dp: int
    """Number of attention replicas, each with its own requests."""
    moe_tp: int
    ep: int

    @property
    def gpus(self) -> int:
        """Number of GPUs of all these servers."""
        return self.workers * max(self.tp * self.dp, self.moe_tp * self.ep)


@dataclass(frozen=True)
class Cell:
    """One measured cell. If a label is missing, a count is 0 and a text is empty; times are means in ms."""

    id: str
    source: str
    """Label of the place where it was measured."""
    engine: str
    version: str
    model: str
    gpu: str
    precision: str
    weights: str
    """Format of the linear layers, as labeled."""
    mode: str
    """Deployment mode: `agg` for one engine, or `disagg` for separate prefill and decode."""
    isl: int
    osl: int
    """Nominal prompt and output lengths in tokens."""
    concurrency: int
    """Number of clients in a closed loop, or mean number of requests in flight in an open loop."""
    tp: int
    pp: int
    dp: int
    """Number of attention replicas, each with its own requests."""
    moe_tp: int
    ep: int
    ttft_ms: float
    tpot_ms: float
    workers: str = ""
    """Numbers, sizes and parallelism of disaggregated prefill and decode servers, as labeled."""
    sides: tuple[Side, Side] | None = None
    """Prefill and decode sides, if they are disaggregated and their numbers are stated."""
    flags: tuple[tuple[str, str], ...] | None = None
    """Flags of the engine's command and their values, without parallelism, or None if there is no command."""
    requests: int = 0
    """Number of requests, if its command or the cell states it; 0 means as many as its source sends."""
    output_rate: float = 0.0
    """Output tokens/s of the server; 0 means the rate of a closed loop with the measured times."""
    settings: tuple[tuple[str, Any], ...] | None = None
    """Settings the server was found to run with (`servesim measure`), dotted as in a scenario, or None if not
    stated."""
    run: RecordedRun | None = field(default=None, compare=False, repr=False)
    """Recorded run that the cell summarizes, or None for a line of a table."""

    @property
    def gpus(self) -> int:
        """Number of GPUs of the server, or of those its experts are spread over if these are more. For disaggregated
        prefill and decode, the GPUs of both sides."""
        if self.sides is not None:
            return sum(side.gpus for side in self.sides)
        return max(self.tp * max(self.dp, 1), self.moe_tp * self.ep) * max(self.pp, 1)

    @property
    def product(self) -> tuple[str, ...]:
        """Product at any size: engine, version, model, GPU, formats."""
        return (self.engine, self.version, self.model, self.gpu, self.precision, self.weights, self.mode)

    @property
    def deployment(self) -> tuple[str | int, ...]:
        """One server at all lengths and concurrencies: a product and its parallelism."""
        return (*self.product, self.tp, self.pp, self.dp, self.moe_tp, self.ep, self.workers)

    @property
    def place(self) -> tuple[str | int, ...]:
        """Key shared by repeats of the measurement."""
        return (*self.deployment, self.isl, self.osl, self.concurrency)

    @property
    def name(self) -> str:
        """Line that names the cell in progress output."""
        lengths = f"{self.isl}/{self.osl}"
        return f"{self.engine} {self.version} {self.model} {self.gpu} tp{self.tp} {lengths} C={self.concurrency}"


def sample_file() -> Path:
    """Return the table of measured cells inside an installed aiconfigurator-core. Raise UserError if it is not
    installed."""
    folder = package_folder()
    if folder is None or not (folder / SAMPLE).is_file():
        raise UserError(
            "no measured cells: aiconfigurator-core 0.12.0 is not installed and no files are given; pip install "
            '"servesim[silicon]", or name your own table or recordings'
        )
    return folder / SAMPLE


def package_folder() -> Path | None:
    """Return the folder of the installed aiconfigurator-core without importing it, or None if it is not installed."""
    spec = find_spec(PACKAGE)
    return Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None
