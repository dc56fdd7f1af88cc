"""Parquet files with arbitrary columns, opened within limits; errors name the file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from servesim.errors import UserError
from servesim.untrusted import limits, too_much

from . import first_of


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn an error from a file that is not a Parquet trace into a UserError that names the file."""
    import pyarrow as pa

    try:
        yield
    except (
        pa.ArrowException,
        pa.ArrowKeyError,
        OverflowError,
        TypeError,
        OSError,
        ValueError,
        AttributeError,
    ) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{path}: not a readable Parquet trace (truncated?): {reason}") from error


def open_files(path: Path) -> list[Any]:
    import pyarrow.parquet as pq

    paths = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    files = [pq.ParquetFile(part, page_checksum_verification=True) for part in paths]
    if sum(file.metadata.num_rows for file in files) > limits().rows:
        raise too_much(path, "rows are", "rows")
    groups = [file.metadata.row_group(i) for file in files for i in range(file.num_row_groups)]
    if 8 * sum(group.column(i).num_values for group in groups for i in range(group.num_columns)) > limits().bytes:
        raise too_much(path, "bytes of columns are", "bytes")
    return files


def parquet_names(path: Path) -> list[str]:
    """Return the names of the columns of a Parquet file, or of the first one in a folder."""
    import pyarrow.parquet as pq

    with readable(path):
        return list(pq.read_schema(first_of(path) if path.is_dir() else path).names)
