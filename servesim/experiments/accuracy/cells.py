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
    """Servers on one side of a disaggregated deployment, as labeled."""

    workers: int
    tp: int
    dp: int
    """Number of attention replicas, each with its own requests."""
    moe_tp: int
    ep: int


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One measured cell. Missing labels are 0 for counts and empty for texts; times are means in ms."""

    id: str
    source: str
    """Label of the place where it was measured."""
    engine: str
    version: str
    model: str
    gpu: str
    precision: str
    weights: str
    """Format of the linear layers' weights, as labeled."""
    mode: str = "agg"
    """Deployment mode: `agg` for one engine, or `disagg` for separate prefill and decode."""
    isl: int
    osl: int
    """Nominal prompt and output lengths in tokens."""
    concurrency: int
    """Number of clients in a closed loop, or mean number of requests in flight in an open loop."""
    tp: int
    pp: int = 1
    dp: int = 1
    """Number of attention replicas, each with its own requests."""
    moe_tp: int = 1
    ep: int = 1
    ttft_ms: float
    tpot_ms: float
    """Mean over requests: of unequal answers the short ones weigh as much as the long ones."""
    workers: str = ""
    """Counts, sizes and parallelism of disaggregated prefill and decode servers, as labeled."""
    sides: tuple[Side, Side] | None = None
    """Prefill and decode sides, if they are disaggregated and their server counts are stated."""
    flags: tuple[tuple[str, str], ...] | None = None
    """Flags of the engine's command with their values, excluding parallelism, or None if there is no command."""
    batch: int = 0
    """Batch size stated next to the number of clients: the clients of one attention replica. 0 if not stated."""
    requests: int = 0
    """Number of requests, if stated by the command or the cell; 0 means as many as its source sends."""
    output_rate: float = 0.0
    """Output tokens/s of the server; 0 means the rate of a closed loop with the measured times."""
    e2e_ms: float = 0.0
    """End-to-end latency; 0 means that of the mean answer at the mean TTFT and TPOT, exact for equal answers."""
    settings: tuple[tuple[str, Any], ...] | None = None
    """Settings that the server was found to use (`servesim measure`), dotted as in a scenario, or None if not
    stated."""
    run: RecordedRun | None = field(default=None, compare=False, repr=False)
    """Recorded run that the cell summarizes, or None for a row of a table."""

    @property
    def gpus(self) -> int:
        """Number of GPUs of the server or, if larger, the number of GPUs that its experts are spread over. For
        disaggregated prefill and decode, the number of GPUs on both sides."""
        if self.sides is not None:
            return sum(side.workers * max(side.tp * side.dp, side.moe_tp * side.ep) for side in self.sides)
        return max(self.tp * max(self.dp, 1), self.moe_tp * self.ep) * max(self.pp, 1)

    @property
    def product(self) -> tuple[str, ...]:
        """Product regardless of size: engine, version, model, GPU, formats."""
        return (self.engine, self.version, self.model, self.gpu, self.precision, self.weights, self.mode)

    @property
    def deployment(self) -> tuple[str | int, ...]:
        """One server at all lengths and concurrencies: the product and its parallelism."""
        return (*self.product, self.tp, self.pp, self.dp, self.moe_tp, self.ep, self.workers)

    @property
    def place(self) -> tuple[str | int, ...]:
        """Key shared by repeated measurements of the same cell."""
        return (*self.deployment, self.isl, self.osl, self.concurrency)

    @property
    def name(self) -> str:
        """Line that names the cell in progress output."""
        lengths = f"{self.isl}/{self.osl}"
        return f"{self.engine} {self.version} {self.model} {self.gpu} tp{self.tp} {lengths} C={self.concurrency}"


def sample_file() -> Path:
    """Return the path of the table of measured cells in the installed aiconfigurator-core. Raise UserError if it is not
    installed."""
    folder = package_folder()
    if folder is None or not (folder / SAMPLE).is_file():
        raise UserError(
            "no measured cells: aiconfigurator-core 0.12.0 is not installed and no files are specified; run "
            'pip install "servesim[silicon]", or specify your own table or recordings'
        )
    return folder / SAMPLE


def package_folder() -> Path | None:
    """Return the folder of the installed aiconfigurator-core without importing the package, or None if it is not
    installed."""
    spec = find_spec(PACKAGE)
    return Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None
