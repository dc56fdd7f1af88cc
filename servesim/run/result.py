"""The result of a run: figures, records as DataFrames, and all of its inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from servesim.errors import UserError, shown
from servesim.metrics.requests import RequestColumns
from servesim.plugins.trust import check_code, trusting
from servesim.records.columns import Rows
from servesim.run.provenance import DIGESTS, refuse_older
from servesim.run.result_files import (
    DELIVERIES,
    REQUESTS,
    SAMPLES,
    SCENARIO,
    STEPS,
    STREAMED,
    SUMMARY,
    TIMING,
    ResultWriter,
    arrow_array,
    arrow_strings,
    numpy_array,
    reading,
)
from servesim.run.scenario import Scenario, features_of
from servesim.run.setting_names import read_settings
from servesim.run.shown import as_html, as_text
from servesim.untrusted import read_json

if TYPE_CHECKING:
    import pandas as pd

    from servesim.reports.svg import Drawing

SUMMARY_KEYS = (
    *("cost_shares", "duration_s", "engine", "goodput", "kv", "latency_ms", "notes", "prefix_cache", "price"),
    *("provenance", "requests", "scenario", "speculation", "stability", "throughput", "uncertainty", "warnings"),
)
"""Keys of every summary; `classes` and `tenants` only if the trace has such labels, `intervals` unless they were
switched off."""


_NULLABLE = frozenset(("speculation", "uncertainty", "price", "goodput", "prefix_cache", "cost_shares"))
_RUN_AGAIN = ("features", "speculation", "acceptance", "pools")
"""Settings of a scenario whose code runs when a result is read, for figures of features and prices of steps."""
_SUMMARY_KINDS: dict[str, Any] = {"duration_s": (int, float), "notes": list, "warnings": list}
"""Types of those parts of a summary that are not mappings."""

NOT_KEPT = "a streamed run stores records only in a result directory: specify one (out=...)"


class Result:
    """One finished run. DataFrames are created on first access."""

    def __init__(
        self,
        summary: dict[str, Any],
        scenario: Scenario,
        timing: dict[str, Any],
        requests: Any,
        streamed: Mapping[str, list[Rows] | Path | None],
        samples: Any = None,
    ) -> None:
        """Build a result. `requests` is a pyarrow table, or the path of its file; `streamed` has the chunks of the
        tables of steps and deliveries by file name, or the Parquet files themselves, or None if not kept. `samples`: a
        pyarrow table of the samples, if requests have several, or the path of its file."""
        self.summary = summary
        """All figures, as in summary.json: latencies in ms, durations in s, shares between 0 and 1."""
        self.scenario = scenario
        """Fully resolved scenario; a rerun of it gives the same result."""
        self.timing = timing
        """Time and memory of the run itself, as in timing.json."""
        self._requests = requests
        self._samples = samples
        self._streamed = streamed

    @property
    def intervals(self) -> dict[str, Any]:
        """Error bars of mean TTFT, TPOT and E2E based on measured servers, or the reason why there are none."""
        kept: dict[str, Any] | None = self.summary.get("intervals")
        if kept is not None:
            return kept
        late = (feature.from_summary(self.summary) for feature in features_of(self.scenario))
        found: dict[str, Any] = next((each["intervals"] for each in late if "intervals" in each), {"says": "unknown"})
        return found

    def __repr__(self) -> str:
        return as_text(self.summary)

    def _repr_html_(self) -> str:
        """Return the HTML that notebooks show."""
        return as_html(self.summary)

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row per request, in trace order. Times in ns; -1 or null if the event has not happened."""
        frame: pd.DataFrame = self._request_table().to_pandas()
        return frame

    @cached_property
    def samples(self) -> pd.DataFrame:
        """One row per output sequence, in order of their numbers: like `requests`, but with a row for each sample of a
        request that asks for several (n > 1) (columns: servesim.records.columns.REQUEST_COLUMNS)."""
        import pandas as pd

        if self._samples is None:
            alone: pd.DataFrame = self.requests.assign(sample=0, request=self.requests["row"])
            return alone
        several = self._sample_table().to_pandas()
        alone = self.requests[~self.requests["row"].isin(several["request"])]
        alone = alone.assign(sample=0, request=alone["row"])
        both: pd.DataFrame = pd.concat([alone[several.columns], several]).sort_values("row", ignore_index=True)
        return both

    @cached_property
    def steps(self) -> pd.DataFrame:
        """One row per step, or per `k` steps of the same composition; columns:
        servesim.records.columns.STEP_COLUMNS."""
        return self._frame(STEPS)

    @cached_property
    def deliveries(self) -> pd.DataFrame:
        """Steps that did not deliver exactly one token to each request; see servesim.records.recorder."""
        return self._frame(DELIVERIES)

    def columns_of(self, file: str) -> dict[str, NDArray[Any]]:
        """Return the records of requests, steps or deliveries, by the name of their file, as arrays by column: the
        values of the DataFrames, without the import of pandas."""
        if file == REQUESTS:
            table = self._request_table()
            return {name: numpy_array(table[name]) for name in table.column_names}
        chunks, names = self._chunks(file), STREAMED[file]
        rows = np.concatenate(chunks) if chunks else np.empty((0, len(names)), dtype=np.int64)
        return {name: rows[:, i] for i, name in enumerate(names)}

    def figure(self, name: str, window_s: tuple[float, float] | None = None, panel: str | None = None) -> Drawing:
        """Draw one figure of the report, such as "latency_cdf" (see servesim.figure; servesim.figures(result) lists all
        names)."""
        import servesim

        drawn: Drawing = servesim.figure(self, name, window_s=window_s, panel=panel)
        return drawn

    def save(self, out: str | Path) -> Path:
        """Write the directory that `servesim run --out` writes, without its report."""
        requests = self._request_table()
        writer = ResultWriter(out)
        try:
            for file in STREAMED:
                for chunk in self._chunks(file):
                    writer.add(file, chunk)
            writer.finish(self.summary, requests, self.scenario.to_yaml(), self.timing, self._sample_table())
        finally:
            writer.discard()
        return writer.out

    @classmethod
    def load(cls, path: str | Path, trust: bool = False) -> Result:
        """Load a saved result. `trust`: let its own features and speculators run (servesim.plugins.trust)."""
        import pyarrow.parquet as pq

        folder = Path(path)
        if not (folder / SUMMARY).is_file():
            raise UserError(f"{folder}: not a servesim result (no {SUMMARY} in it)")
        for file, columns in {REQUESTS: ("row", "state"), **STREAMED}.items():
            with reading(folder / file):
                _complete(columns, pq.read_schema(folder / file).names)
        with reading(folder / SUMMARY):
            summary = read_json(folder / SUMMARY)
            refuse_older(folder, {*SUMMARY_KEYS} - {*summary})
            _complete(SUMMARY_KEYS, summary)
            _whole(summary)
        with reading(folder):
            settings = read_settings(folder / SCENARIO)
            with trusting(trust):
                for file, given in {SCENARIO: settings, SUMMARY: summary["scenario"]}.items():
                    check_code([given.get(key) for key in _RUN_AGAIN], str(folder / file))
            scenario = Scenario.of(settings, str(folder / SCENARIO))
            return cls(
                summary,
                scenario,
                {key: value for key, value in read_json(folder / TIMING).items() if key != DIGESTS},
                folder / REQUESTS if scenario.stream else _stored(folder / REQUESTS),
                {file: folder / file for file in STREAMED},
                folder / SAMPLES if (folder / SAMPLES).exists() else None,
            )

    def _request_table(self) -> Any:
        """Return the requests as a pyarrow table in trace order (a streamed run writes them in the order in which they
        end)."""
        if self._requests is None:
            raise UserError(NOT_KEPT)
        if isinstance(self._requests, Path):
            with reading(self._requests):
                return _stored(self._requests).sort_by("row")
        return self._requests

    def _sample_table(self) -> Any:
        """Return the samples as a pyarrow table in order of their numbers, or None if no request has several."""
        if isinstance(self._samples, Path):
            with reading(self._samples):
                return _stored(self._samples).sort_by("row")
        return self._samples

    def _frame(self, file: str) -> pd.DataFrame:
        import pandas as pd

        source, columns = self._streamed[file], STREAMED[file]
        if source is None:
            raise UserError(NOT_KEPT)
        if isinstance(source, Path):
            with reading(source):
                return pd.read_parquet(source)
        rows = np.concatenate(source) if source else np.empty((0, len(columns)), dtype=np.int64)
        return pd.DataFrame(rows, columns=list(columns))

    def _chunks(self, file: str) -> list[Rows]:
        """Return a table in the chunks in which it was recorded."""
        source = self._streamed[file]
        if source is None:
            raise UserError(NOT_KEPT)
        if not isinstance(source, Path):
            return source
        import pyarrow.parquet as pq

        with reading(source):
            stored = pq.ParquetFile(source)
            groups = [stored.read_row_group(i) for i in range(stored.num_row_groups)]
        return [np.stack([numpy_array(g[name]) for name in STREAMED[file]], axis=1) for g in groups]


def _stored(path: Path) -> Any:
    """Return a Parquet file as a pyarrow table. Unlike pyarrow's `read_table`, this does not import pandas."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        return file.read()


def _complete(wanted: Iterable[str], found: Iterable[str]) -> None:
    """Raise ValueError if a part of a file is missing."""
    if missing := sorted(set(wanted) - set(found)):
        raise ValueError(f"it has no {', '.join(missing)} (written by a different version?)")


def _whole(summary: Mapping[str, Any]) -> None:
    """Raise ValueError if a part of a summary that a run always fills is null."""
    for key in SUMMARY_KEYS:
        if summary[key] is None and key in _NULLABLE:
            continue
        if not isinstance(summary[key], _SUMMARY_KINDS.get(key, dict)):
            raise ValueError(f"its {key} is {shown(summary[key])}")


def sample_table(columns: RequestColumns) -> Any:
    """Return the records of output sequences as a pyarrow table for requests with several samples, or None if there are
    none."""
    import pyarrow as pa

    which = columns.sequences["sample"] != 0
    if not which.any():
        return None
    return pa.table({name: arrow_array(column[which]) for name, column in columns.sequences.items()})


def request_table(columns: RequestColumns, texts: Mapping[str, list[str]]) -> Any:
    """Return the request records as a pyarrow table: recorded columns, then reason, `texts` (the trace's names and
    labels) and latencies (null unless completed; tpot null for a single output token)."""
    import pyarrow as pa

    rows, done = columns.table["row"].tolist(), columns.done
    table = {name: arrow_array(column) for name, column in columns.table.items()}
    table["reason"] = arrow_strings([columns.reasons[row] for row in rows])
    table |= {name: arrow_strings(values) for name, values in texts.items()}

    def spread(values: Any, valid: Any) -> Any:
        full = np.zeros(len(done), dtype=values.dtype)
        full[done] = values
        return arrow_array(full, valid)

    table["ttft_ns"] = spread(columns.ttft, done)
    table["tpot_ns"] = spread(columns.tpot, done & (columns.table["longest_output_len"] > 1))
    table["e2el_ns"] = spread(columns.e2el, done)
    table["queue_time_ns"] = spread(columns.queue_time, done)
    return pa.table(table)
