"""Requests computed in each step: step_requests.parquet, a companion of steps.parquet.

Columns, int64, with a row for each request of a step in batch order: `replica`; `step`, the id as in steps.parquet;
`row` of the request; `num_scheduled_tokens`, computed for it in the step (0: preempted while the step was planned);
`num_computed_tokens`, computed before; `draft_tokens`, among the scheduled ones (vLLM's SchedulerOutput in columns).

Steps are available one by one only in reference mode, whose results equal those of fast mode to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from servesim.contracts.part import Part
from servesim.contracts.plan import Plan
from servesim.contracts.warn import Warn
from servesim.engine.replica import Replica
from servesim.errors import UserError
from servesim.run.result_files import STEP_REQUESTS, STEP_REQUESTS_COLUMNS, ResultWriter, arrow_array
from servesim.run.scenario import Scenario

MOST = 20_000_000
"""Maximum number of rows; later steps are left out, with a note. On disk, a row takes about 2 bytes."""
CHUNK = 1 << 18


def check_step_requests(scenario: Scenario, writer: ResultWriter | None, jobs: int) -> None:
    """Raise UserError if a run cannot record the requests of its steps."""
    if writer is None:
        raise UserError("step_requests: written only to a result directory: specify one (--out, out=...)")
    if scenario.stream:
        raise UserError("step_requests: not available in a streamed run, which does not store steps")
    if jobs > 1:
        raise UserError("step_requests: not available with --jobs: one process must record all steps")
    if scenario.mode != "reference":
        raise UserError("step_requests: available only in reference mode (--mode reference)")


class StepRequests(Part):
    """The table while it is being written."""

    def __init__(self, writer: ResultWriter, most: int = MOST) -> None:
        self._writer, self._most, self._rows = writer, most, 0
        self._staged: list[tuple[int, ...]] = []
        self.left_out = 0
        """Number of steps left out because the table was full."""

    def core_made(self, replica: Replica) -> None:
        """Make a core report its steps."""
        replica.core.on_plan = partial(self._planned, replica.index)

    def _planned(self, replica: int, step: int, plan: Plan) -> None:
        if self._rows + len(plan.tokens) + len(plan.preempted) > self._most:
            self._most, self.left_out = 0, self.left_out + 1
            return
        rows = [(replica, step, one.row, 0, one.num_computed_tokens, 0) for one in plan.preempted]
        for one, new in plan.tokens.items():
            rows.append((replica, step, one.row, new, one.num_computed_tokens - new, plan.drafts.get(one, 0)))
        self._rows += len(rows)
        self._staged += rows
        if len(self._staged) >= CHUNK:
            self.flush()

    def flush(self) -> None:
        """Write the staged rows."""
        import pyarrow as pa

        cells = np.array(self._staged, dtype=np.int64).reshape(-1, len(STEP_REQUESTS_COLUMNS))
        self._staged = []
        table = pa.table({name: arrow_array(cells[:, i]) for i, name in enumerate(STEP_REQUESTS_COLUMNS)})
        self._writer.add_table(STEP_REQUESTS, table, use_dictionary=False, column_encoding="DELTA_BINARY_PACKED")

    def notes(self, summary: Mapping[str, Any]) -> list[str]:
        """Return a note on steps missing from the table."""
        if not self.left_out:
            return []
        return [
            Warn(
                f"step_requests: the limit of {self._rows:,} rows is reached, and the last {self.left_out:,} steps "
                "are missing. Replay fewer requests."
            )
        ]
