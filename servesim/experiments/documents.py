"""Documents of experiments: JSON and tidy Parquet, written under a temporary name and then renamed. The same inputs
give the same bytes."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servesim.experiments.store import table_of
from servesim.run.result_files import to_json, writable

if TYPE_CHECKING:
    import pandas as pd


def answered(
    document: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    out: str | Path | None,
    name: str,
    columns: Mapping[str, list[Any]],
) -> pd.DataFrame:
    """Write the table and then the document, whose presence shows that both are complete, below `out`, if given. Return
    the rows as a DataFrame, with the document and the folder in its attributes."""
    import pandas as pd

    if out is not None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        folder, table = Path(out), pa.table({key: plain(values) for key, values in columns.items()})
        with writable(folder):
            scratch = folder / f".{table_of(name)}.{os.getpid()}"
            pq.write_table(table, scratch, compression="zstd")
            scratch.replace(folder / table_of(name))
            scratch = folder / f".{name}.{os.getpid()}"
            scratch.write_text(to_json(plain(document)), encoding="utf-8")
            scratch.replace(folder / name)
    frame = pd.DataFrame(rows)
    frame.attrs |= {"document": document, "folder": str(out) if out is not None else None}
    return frame


def plain(value: Any) -> Any:
    """Return a value in a form that JSON can hold: NaN and infinity become null, and numpy numbers become Python
    numbers."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)
