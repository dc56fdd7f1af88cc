"""Records of a run, for its figures and its result: all of them, or only their sums for a streamed run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from servesim.errors import PolicyError
from servesim.metrics.classes import class_limits
from servesim.metrics.distribution import describe_counted
from servesim.metrics.replicas import ReplicaTotals
from servesim.metrics.requests import MS, SECOND, Limits, RequestColumns, Requests, Stats
from servesim.metrics.sketch import RELATIVE_ERROR, Sketch
from servesim.metrics.steps import StepTotals
from servesim.metrics.streamed import StreamedRequests
from servesim.plugins.user_policies import blaming
from servesim.records.columns import REQUEST_COLUMNS, Rows
from servesim.records.recorder import Recorder
from servesim.run.label_groups import Labels, StreamedLabels, by_label
from servesim.run.result import request_table, sample_table
from servesim.run.result_files import DELIVERIES, REQUESTS, SAMPLES, STEPS, STREAMED, ResultWriter
from servesim.run.scenario import Scenario
from servesim.run.setup import Setup
from servesim.workload.predictor import predict
from servesim.workload.streamed import StreamedWorkload
from servesim.workload.workload import Clients, TraceWorkload

GROUPS = ("class", "tenant")


class Records:
    """All records, in memory; steps and deliveries go to the result directory during the run, if there is one."""

    workload: TraceWorkload
    notes: tuple[str, ...] = ()
    samples: Any = None
    """A pyarrow table of output sequences, for requests with several samples, or the path of its file."""

    def __init__(self, setup: Setup, writer: ResultWriter | None) -> None:
        self._setup, self._writer = setup, writer
        self.totals = StepTotals()
        self.replicas = ReplicaTotals() if setup.several else None
        """Sums for each replica, if there are several replicas."""
        self.tables: dict[str, list[Rows] | Path | None] = {}
        """Rows of each table, or the path of its file; None if they are not kept."""
        sinks = {file: self._sink_of(file) for file in STREAMED}
        self._steps = sinks[STEPS]
        self.recorder = self._recorder(sinks[DELIVERIES])
        self.workload = self._workload(clients_of(setup.scenario))

    def _sink_of(self, file: str) -> Callable[[Rows], None]:
        if self._writer is not None:
            self.tables[file] = self._writer.out / file
            return partial(self._writer.add, file)
        chunks: list[Rows] = []
        self.tables[file] = chunks
        return chunks.append

    def _recorder(self, deliveries: Callable[[Rows], None]) -> Recorder:
        return Recorder(self._step_sink, self._setup.out_ns, deliveries)

    def _workload(self, clients: Clients) -> TraceWorkload:
        form = self._setup.cores[0].scheduler.samples
        return TraceWorkload(self._setup.trace, self._setup.predicted, clients, form)

    def _step_sink(self, rows: Rows) -> None:
        self.totals.add(rows)
        if self.replicas is not None:
            self.replicas.add_steps(rows)
        self._steps(rows)

    def flush(self) -> None:
        """Pass on buffered records at the end of the run."""
        self.recorder.steps.flush()
        self.recorder.deliveries.flush()

    def close(self) -> None:
        """Compute the inputs of figures, and the tables."""
        self._columns = RequestColumns.of(self.recorder.requests.array(), self.recorder.reasons)
        self.requests: Requests = self._columns
        if self.replicas is not None:
            self._add_served(self.replicas, self._columns)
        self.itl: Stats = describe_counted(*self.recorder.itl(), MS)
        labels, rows = self._setup.trace.labels, len(self._setup.trace)
        scenario = self._setup.scenario
        self.groups: dict[str, Labels] = {
            kind: by_label(self._columns, labels[kind], scenario.slo, scenario.slo_classes if kind == "class" else ())
            for kind in GROUPS
            if kind in labels
        }
        self.limits: Limits | None = None
        if "class" in labels and scenario.slo_classes:
            of = self._columns.completed("row") % rows
            self.limits = class_limits(labels["class"], of, scenario.slo, scenario.slo_classes)
        self.retries = int((self._columns.table["row"] >= rows).sum())
        self.table: Any = request_table(self._columns, self._texts())
        self.table = self._with_columns(self.table, self._columns)
        self.samples = sample_table(self._columns)
        self._tell_settled(self._columns)

    def _add_served(self, replicas: ReplicaTotals, requests: RequestColumns) -> None:
        """Count every request on the replica that served it; if several replicas served it, on each of them."""
        numbers = requests.table["row"]
        with blaming([type(part) for part in self._setup.parts]):
            apart = [served for part in self._setup.parts if (served := part.served(numbers)) is not None]
        rows = [row for served in apart for row in served.rows]
        replicas.add_requests(requests.take(~np.isin(numbers, rows)) if rows else requests)
        for served in apart:
            for replica, values in served.sums:
                replicas.add_served(replica, values)

    def _with_columns(self, table: Any, requests: RequestColumns) -> Any:
        """Return a table of requests with the columns of all parts; raise PolicyError for a column that does not
        fit."""
        from servesim.run.result_files import arrow_array

        for part in self._setup.parts:
            whose = type(part).__name__
            with blaming([type(part)]):
                columns = part.columns(requests.table["row"])
                for name, column in columns.items():
                    if name in table.column_names:
                        raise PolicyError(
                            f"{whose}: columns has {name!r}, but requests already have a column of this name"
                        )
                    if np.shape(column) != (len(table),) or not np.issubdtype(np.asarray(column).dtype, np.integer):
                        raise PolicyError(
                            f"{whose}: columns: {name!r} must be one integer for each of {len(table)} requests"
                        )
                    table = table.append_column(name, arrow_array(np.asarray(column)))
        return table

    def _tell_settled(self, requests: RequestColumns) -> None:
        for part in self._setup.parts:
            with blaming([type(part)]):
                part.settled(requests)

    def _texts(self) -> dict[str, list[str]]:
        trace = self._setup.trace
        again, rows = (column.tolist() for column in np.divmod(self._columns.table["row"], len(trace)))
        texts = {}
        if (names := trace.request_id) is not None:
            texts["name"] = [f"{names[row]}#{k}" if k else names[row] for k, row in zip(again, rows, strict=True)]
        return texts | {kind: [values[row] for row in rows] for kind, values in trace.labels.items()}


class StreamedRecords(Records):
    """Sums over records; the records themselves go to the result directory, or are discarded."""

    workload: StreamedWorkload
    notes = (
        f"streamed: percentiles of latencies are accurate to {100 * RELATIVE_ERROR:g} %, and the tenths of the "
        "arrival span are accurate to 1/4096 of the time of the last arrival. Everything else is exact",
    )

    def __init__(self, setup: Setup, writer: ResultWriter | None) -> None:
        self._all = StreamedRequests(setup.facts.first_ns)
        self._gaps = Sketch()
        self._partial = np.empty((0, len(REQUEST_COLUMNS)), dtype=np.int64)
        """Records of samples whose request has others that have not left."""
        self._groups = {kind: StreamedLabels() for kind in GROUPS if kind in setup.facts.labels}
        super().__init__(setup, writer)

    def _sink_of(self, file: str) -> Callable[[Rows], None]:
        if self._writer is not None:
            return super()._sink_of(file)
        self.tables[file] = None
        return lambda rows: None

    def _recorder(self, deliveries: Callable[[Rows], None]) -> Recorder:
        return Recorder(self._step_sink, self._setup.out_ns, deliveries, self._request_sink, self._gaps.add)

    def _workload(self, clients: Clients) -> StreamedWorkload:
        scenario, stream, predictor = self._setup.scenario, self._setup.stream, self._setup.predictor
        assert stream is not None

        def predicted(chunk: Any, first: int) -> Any:
            return predict(predictor, chunk, scenario.seed, first)

        form, facts = self._setup.cores[0].scheduler.samples, self._setup.facts
        return StreamedWorkload(stream.read(), len(facts), predicted, clients, form, facts.samples)

    def _request_sink(self, rows: Rows) -> None:
        if self._setup.facts.samples:
            rows = self._whole(rows)
        reasons = self.recorder.reasons
        if len(rows):
            self._add(RequestColumns.of(rows, reasons))
        kept = {row: reasons[row] for row in self._partial[:, 0].tolist()}
        reasons.clear()
        reasons.update(kept)

    def _whole(self, rows: Rows) -> Rows:
        """Return the records of requests all of whose samples have left, and keep the others."""
        rows = np.concatenate((self._partial, rows))
        sample, number = (rows[:, REQUEST_COLUMNS.index(name)] for name in ("sample", "request"))
        several = np.unique(number[sample != 0]).tolist()
        later = np.isin(number, [row for row in several if self.workload.in_flight(row)]) & (sample != 0)
        self._partial = rows[later]
        whole: Rows = rows[~later]
        return whole

    def _add(self, columns: RequestColumns) -> None:
        scenario = self._setup.scenario
        slo, own = scenario.slo, scenario.slo_classes
        if self.replicas is not None:
            self._add_served(self.replicas, columns)
        numbers = columns.table["row"].tolist()
        texts = self.workload.texts(numbers)
        limits: Limits = slo
        if "class" in texts and own:
            limits = class_limits(texts["class"], np.flatnonzero(columns.done), slo, own)
        self._all.take(columns, limits, self.workload.settled_ns())
        for kind, group in self._groups.items():
            group.add(columns, texts[kind], slo, own if kind == "class" else {})
        if self._writer is not None:
            self._writer.add_table(REQUESTS, self._with_columns(request_table(columns, texts), columns))
            if (samples := sample_table(columns)) is not None:
                self._writer.add_table(SAMPLES, samples)
        self._tell_settled(columns)
        self.workload.forget(numbers)

    def flush(self) -> None:
        super().flush()
        self.recorder.requests.flush()
        if len(self._partial):  # of the last request, which had not quite left
            self._request_sink(self._partial[:0])
        self.recorder.pool()

    def close(self) -> None:
        self.requests = self._all
        self.itl = self._gaps.describe(MS)
        self.groups = {kind: group.grouped() for kind, group in self._groups.items()}
        self.limits = self._setup.scenario.slo if self._setup.scenario.slo_classes and "class" in self.groups else None
        self.retries = 0
        self.table = self._writer.out / REQUESTS if self._writer is not None else None
        self.samples = self._writer.out / SAMPLES if self._writer is not None and self._setup.facts.samples else None


def clients_of(scenario: Scenario) -> Clients:
    """Return the client settings with times in nanoseconds."""
    settings = scenario.clients

    def ns(seconds: float | None) -> int | None:
        return round(seconds * SECOND) if seconds is not None else None

    return Clients(
        settings.max_concurrency,
        settings.batch,
        settings.max_sessions,
        ns(settings.timeout_s),
        ns(settings.ttft_timeout_s),
        settings.retries,
        round(settings.retry_delay_s * SECOND),
        round((settings.turn_ms or 0.0) * MS),
        round(settings.ramp_up_s * SECOND),
        scenario.seed,
    )
