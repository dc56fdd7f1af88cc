"""Which requests each step computed: step_requests.parquet, a companion of steps.parquet.

Columns, int64, a row for each request of a step in batch order: `replica`; `step`, the id as in steps.parquet; `row` of
the request; `num_scheduled_tokens` the step computed of it (0: preempted while the step was planned);
`num_computed_tokens` it had before; `draft_tokens` among those scheduled (vLLM's SchedulerOutput in columns).

Steps are told one by one in reference mode alone, whose results are those of fast mode to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from servesim.contracts.plan import Plan
from servesim.engine.core import EngineCore
from servesim.errors import UserError
from servesim.records.step import Step
from servesim.run.result_files import STEP_REQUESTS, STEP_REQUESTS_COLUMNS, ResultWriter, arrow_array
from servesim.run.scenario import Scenario

MOST = 20_000_000
"""Rows; later steps are left out, and it is noted. On disk a row takes about 2 bytes."""
CHUNK = 1 << 18


def check_step_requests(scenario: Scenario, writer: ResultWriter | None, jobs: int) -> None:
    """Raise UserError where a run cannot record the requests of its steps."""
    if writer is None:
        raise UserError("step_requests: written only to a result directory: give one (--out, out=...)")
    if scenario.stream:
        raise UserError("step_requests: not available in a streamed run, which keeps no records of steps")
    if jobs > 1:
        raise UserError("step_requests: not available with --jobs: one process must record all steps")
    if scenario.mode != "reference":
        raise UserError("step_requests: available only in reference mode (--mode reference)")


class StepRequests:
    """The table in the making."""

    def __init__(self, writer: ResultWriter, cores: Sequence[EngineCore], most: int = MOST) -> None:
        self._writer, self._most, self._rows = writer, most, 0
        self._staged: list[tuple[int, ...]] = []
        self.left_out = 0
        """Steps that came after the table was full."""
        for replica, core in enumerate(cores):
            assert isinstance(core, ObservedCore)
            core.observer = partial(self._planned, replica)

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
        """Write what has come."""
        import pyarrow as pa

        cells = np.array(self._staged, dtype=np.int64).reshape(-1, len(STEP_REQUESTS_COLUMNS))
        self._staged = []
        table = pa.table({name: arrow_array(cells[:, i]) for i, name in enumerate(STEP_REQUESTS_COLUMNS)})
        self._writer.add_table(STEP_REQUESTS, table, use_dictionary=False, column_encoding="DELTA_BINARY_PACKED")

    def notes(self) -> list[str]:
        """Return what the table lacks."""
        if not self.left_out:
            return []
        return [
            f"step_requests: the limit of {self._rows:,} rows is reached; the last {self.left_out:,} steps are missing"
        ]


Observer = Callable[[int, Plan], None]
"""Called with a step's id and its plan, once the plan has been verified."""


class ObservedCore(EngineCore):
    """An EngineCore whose `observer`, if there is one, is told every step that is planned."""

    observer: Observer | None = None

    def plan(self, now: int) -> Step | None:
        """Plan the next step, and tell the observer."""
        step = super().plan(now)
        if step is not None and self.observer is not None and self.last_plan is not None:
            self.observer(step.id, self.last_plan)
        return step
