"""What a run found out: figures, records as DataFrames, and everything that made them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from servesim.engine.recorder import STEP_COLUMNS, Rows
from servesim.errors import UserError
from servesim.metrics.requests import RequestColumns
from servesim.result_files import REQUESTS, SCENARIO, STEPS, SUMMARY, TIMING, ResultWriter, arrow_array, arrow_strings
from servesim.scenario import Scenario, load_settings

if TYPE_CHECKING:
    import pandas as pd


class Result:
    """One finished run. DataFrames are made when first asked for."""

    def __init__(
        self,
        summary: dict[str, Any],
        scenario: Scenario,
        timing: dict[str, Any],
        requests: Any,
        steps: list[Rows] | Path,
    ) -> None:
        """`requests` is a pyarrow table; `steps` the chunks of the step table, or its Parquet file."""
        self.summary = summary
        """All figures, as in summary.json: latencies in ms, durations in s, shares between 0 and 1."""
        self.scenario = scenario
        """Fully resolved: running it again gives the same result."""
        self.timing = timing
        """What the run cost here, as in timing.json."""
        self._requests = requests
        self._steps = steps

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row a request, in trace order. Times in ns; -1 or null: has not happened."""
        frame: pd.DataFrame = self._requests.to_pandas()
        return frame

    @cached_property
    def steps(self) -> pd.DataFrame:
        """One row a step, or `k` steps alike; columns: servesim.engine.recorder.STEP_COLUMNS."""
        import pandas as pd

        if isinstance(self._steps, Path):
            return pd.read_parquet(self._steps)
        rows = np.concatenate(self._steps) if self._steps else np.empty((0, len(STEP_COLUMNS)), dtype=np.int64)
        return pd.DataFrame(rows, columns=list(STEP_COLUMNS))

    def save(self, out: str | Path) -> Path:
        """Write summary.json, requests.parquet, steps.parquet, scenario.yaml and timing.json into a directory."""
        writer = ResultWriter(out)
        try:
            for chunk in self._chunks():
                writer.add_steps(chunk)
            writer.finish(self.summary, self._requests, self.scenario.to_yaml(), self.timing)
        finally:
            writer.discard()
        return writer.out

    @classmethod
    def load(cls, path: str | Path) -> Result:
        """A saved result."""
        import pyarrow.parquet as pq

        folder = Path(path)
        if not (folder / SUMMARY).is_file():
            raise UserError(f"{folder}: not a servesim result (no {SUMMARY} in it)")
        try:
            return cls(
                json.loads((folder / SUMMARY).read_text(encoding="utf-8")),
                Scenario.of(load_settings(folder / SCENARIO), str(folder / SCENARIO)),
                json.loads((folder / TIMING).read_text(encoding="utf-8")),
                pq.read_table(folder / REQUESTS),
                folder / STEPS,
            )
        except (OSError, ValueError) as error:
            raise UserError(f"{folder}: damaged result: {error}") from error

    def _chunks(self) -> list[Rows]:
        """The step table in the pieces it was recorded in."""
        if not isinstance(self._steps, Path):
            return self._steps
        import pyarrow.parquet as pq

        file = pq.ParquetFile(self._steps)
        groups = [file.read_row_group(i) for i in range(file.num_row_groups)]
        return [np.stack([g[name].to_numpy() for name in STEP_COLUMNS], axis=1) for g in groups]


def request_table(columns: RequestColumns, reasons: Mapping[int, str], names: tuple[str, ...] | None) -> Any:
    """The request records as a pyarrow table: recorded columns, then reason, name and latencies (null unless
    completed; tpot null for a single output token)."""
    import pyarrow as pa

    rows, done = columns.table["row"].tolist(), columns.done
    table = {name: arrow_array(column) for name, column in columns.table.items()}
    table["reason"] = arrow_strings([reasons[row] for row in rows])
    if names is not None:
        attempts = [divmod(row, len(names)) for row in rows]
        table["name"] = arrow_strings([f"{names[row]}#{again}" if again else names[row] for again, row in attempts])

    def spread(values: Any, valid: Any) -> Any:
        full = np.zeros(len(done), dtype=values.dtype)
        full[done] = values
        return arrow_array(full, valid)

    table["ttft_ns"] = spread(columns.ttft, done)
    table["tpot_ns"] = spread(columns.tpot, done & (columns.table["output_len"] > 1))
    table["e2el_ns"] = spread(columns.e2el, done)
    table["queue_time_ns"] = spread(columns.queue_time, done)
    return pa.table(table)
