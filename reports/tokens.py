"""Every step and every token of a run, derived from its records.

Records store runs of equal steps as one row, and only unusual tokens individually. The steps of a row are repriced to
find the end of each. If that fails (the cost model's files have changed, or its price depends on more than the records
store), the steps share the row's time evenly and `exact` is false.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from servesim.cost import TableCostModel
from servesim.errors import UserError
from servesim.reports.priced import batch_of
from servesim.run.result import Result
from servesim.run.setup import cost_model_of

Column = NDArray[np.int64]


@dataclass(frozen=True)
class Steps:
    """All steps, one element per step, ordered by replica and step id."""

    row: Column
    """Row of the step table that contains the step."""
    step: Column
    begin_ns: Column
    end_ns: Column
    exact: bool
    """Whether all ends are exact; if false, the ends within some multi-step rows are estimates."""


class Tokens:
    """Steps and tokens of a result."""

    def __init__(self, result: Result) -> None:
        self._steps = {str(c): result.steps[c].to_numpy() for c in result.steps}
        columns = ("row", "replica", "output_len", "first_token_ns", "last_token_ns")
        answers = result.samples[result.samples["sample"] >= 0]
        self._sequences = {c: answers[c].to_numpy() for c in columns}
        self._of: dict[int, list[int]] = {}  # sequences by request
        for i, request in enumerate(answers["request"].tolist()):
            self._of.setdefault(request, []).append(i)
        self._rows = result.requests["row"].tolist()
        host = result.summary["provenance"]["host_terms"]
        self._out_ns = round(host["front_out"]) if host else 0
        self._late: dict[int, list[tuple[int, int, int]]] = {}
        for row, ns, since, tokens in result.deliveries.to_numpy().tolist():
            self._late.setdefault(row, []).append((ns, since, tokens))
        self._scenario = result.scenario

    @cached_property
    def steps(self) -> Steps:
        """Step table with its runs of steps expanded."""
        s = self._steps
        order = np.lexsort((s["step"], s["replica"]))
        k = s["k"][order]
        row = np.repeat(order, k)
        first = np.cumsum(k) - k
        nth = np.arange(len(row)) - np.repeat(first, k)
        end = s["end_ns"][row].copy()
        cost, exact = self._cost(), True
        for i in np.flatnonzero(k > 1).tolist():
            ends, known = self._ends(int(order[i]), cost)
            end[first[i] : first[i] + k[i]] = ends
            exact = exact and known
        begin = np.where(nth == 0, s["start_ns"][row], np.concatenate([[0], end[:-1]]))
        return Steps(row, s["step"][row] + nth, begin, end, exact)

    def _cost(self) -> TableCostModel | None:
        try:
            return cost_model_of(self._scenario)
        except UserError:
            return None

    def _ends(self, row: int, cost: TableCostModel | None) -> tuple[Column, bool]:
        """Return the end of each step in a row, and whether the ends are exact to the nanosecond."""
        start, end, k = (int(self._steps[c][row]) for c in ("start_ns", "end_ns", "k"))
        if cost is not None:
            batch, _ = batch_of(self._steps, row, 0)
            for asynchronous in (True, False):
                cost.asynchronous = asynchronous
                ends = start + np.cumsum(cost.price_run(batch, k))
                if int(ends[-1]) == end:
                    return ends, True
        return start + (end - start) * np.arange(1, k + 1) // k, False

    @cached_property
    def _ends_by_replica(self) -> dict[int, Column]:
        replica = self._steps["replica"][self.steps.row]
        return {int(r): self.steps.end_ns[replica == r] for r in np.unique(replica)}

    def of(self, i: int) -> Column:
        """Return the times (ns) at which the output tokens of the i-th request (all its samples) reached the client;
        empty if none did."""
        parts = [self._sequence(j) for j in self._of.get(self._rows[i], ())]
        if len(parts) == 1:
            return parts[0]
        return np.sort(np.concatenate([np.empty(0, dtype=np.int64), *parts]))

    def _sequence(self, i: int) -> Column:
        first, last = (int(self._sequences[c][i]) for c in ("first_token_ns", "last_token_ns"))
        if first < 0:
            return np.empty(0, dtype=np.int64)
        ends = self._ends_by_replica[int(self._sequences["replica"][i])]
        begin, stop = np.searchsorted(ends, first - self._out_ns), np.searchsorted(ends, last - self._out_ns)
        times = ends[begin : stop + 1]
        count = np.ones(len(times), dtype=np.int64)
        for ns, since, tokens in self._late.get(int(self._sequences["row"][i]), ()):
            low, high = np.searchsorted(times, since, side="right"), np.searchsorted(times, ns)
            count[low:high] = 0
            count[high] = tokens
        delivered = np.repeat(times, count) + self._out_ns
        if len(delivered) != int(self._sequences["output_len"][i]):
            raise UserError(f"request {self._sequences['row'][i]}: its token records contradict each other")
        return delivered
