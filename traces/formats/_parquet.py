"""Parquet files with arbitrary columns, opened within limits; errors name the file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from servesim.errors import UserError
from servesim.limits import limits, too_much

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
    """Open a file, or the files of a folder. Text columns are read as dictionaries, which hold each distinct text
    once."""
    import pyarrow.parquet as pq

    paths = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    files = []
    for part in paths:
        schema = pq.ParquetFile(part).schema
        if len(schema) > limits().columns:
            raise too_much(path, "columns are", "columns")
        texts = [column.path for column in map(schema.column, range(len(schema))) if _is_text(column)]
        files.append(pq.ParquetFile(part, page_checksum_verification=True, read_dictionary=texts))
    if sum(file.metadata.num_rows for file in files) > limits().rows:
        raise too_much(path, "rows are", "rows")
    groups = [file.metadata.row_group(i) for file in files for i in range(file.num_row_groups)]
    if 8 * sum(group.column(i).num_values for group in groups for i in range(group.num_columns)) > limits().bytes:
        raise too_much(path, "bytes of columns are", "bytes")
    return files


def _is_text(column: Any) -> bool:
    alone = column.physical_type == "BYTE_ARRAY" and column.max_repetition_level == 0
    return alone and column.logical_type.type in ("NONE", "STRING", "ENUM", "JSON")


def cells_of(column: Any, longest: int | None = None) -> list[Any]:
    """Return the cells of a column. Equal texts of a chunk are one object, and texts longer than `longest` characters,
    such as prompts, are None."""
    import pyarrow as pa

    cells: list[Any] = []
    for chunk in column.chunks:
        if not pa.types.is_dictionary(chunk.type):
            cells += chunk.to_pylist()
            continue
        texts = chunk.dictionary.to_pylist()
        if longest is not None:
            texts = [None if text is None or len(text) > longest else text for text in texts]
        cells += [None if i is None else texts[i] for i in chunk.indices.to_pylist()]
    return cells


def parquet_names(path: Path) -> list[str]:
    """Return the column names of a Parquet file, or of the first file in a folder."""
    import pyarrow.parquet as pq

    with readable(path):
        return list(pq.read_schema(first_of(path) if path.is_dir() else path).names)
