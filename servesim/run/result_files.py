"""Result directories: written under a temporary name, then renamed, so that a result is either complete or absent.

The bytes of every file except `timing.json` depend only on the inputs.
"""

from __future__ import annotations

import errno
import glob
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servesim.errors import Interrupted, UserError
from servesim.metrics.distribution import Numbers
from servesim.records.columns import LATE_COLUMNS, STEP_COLUMNS, Rows
from servesim.run.provenance import DIGESTS, digests

SUMMARY, SCENARIO, TIMING = "summary.json", "scenario.yaml", "timing.json"
REQUESTS, STEPS, DELIVERIES = "requests.parquet", "steps.parquet", "deliveries.parquet"
STREAMED = {STEPS: STEP_COLUMNS, DELIVERIES: LATE_COLUMNS}
"""Tables that are written during the run, and their columns."""
SAMPLES = "samples.parquet"
"""File of samples, written only if requests have several (n > 1)."""
STEP_REQUESTS = "step_requests.parquet"
"""File of the requests in each step, written only on request."""
STEP_REQUESTS_COLUMNS = (
    *("replica", "step", "row"),
    *("num_scheduled_tokens", "num_computed_tokens", "draft_tokens"),
)
REPLACED = ".replaced"
REPORT = "report.html"
"""File of the report, which the command line makes from the others."""
FILES = frozenset((SUMMARY, SCENARIO, TIMING, REQUESTS, *STREAMED, SAMPLES, STEP_REQUESTS, REPORT))


class ResultWriter:
    """A result directory in progress: `out` with the suffix `.partial` until `finish`."""

    def __init__(self, out: str | Path) -> None:
        """Claim the path; raise UserError, before any work is done, if a result cannot be written there."""
        self.out = Path(out)
        if ".." in self.out.parts:  # `a/../b` is b, whether or not a exists
            self.out = self.out.resolve()
        self._open: dict[str, Any] = {}
        self._lock: int | None = None
        _refuse_foreign(self.out)
        clear_up(self.out)
        self.partial = self.out.with_name(f"{self.out.name}.{os.getpid()}.partial")
        self._new = [folder for folder in self.out.parents if not folder.exists()]
        try:
            with writable(self.out):
                self.partial.mkdir(parents=True)
                self._lock = locked(self.partial)
                (self.partial / SUMMARY).touch()
        except UserError:
            self.discard()
            raise

    @classmethod
    @contextmanager
    def of(cls, out: str | Path | None) -> Iterator[ResultWriter | None]:
        """Yield a writer for `out`, or None without a path; discard an unfinished result at the end."""
        writer = cls(out) if out is not None else None
        try:
            yield writer
        finally:
            if writer is not None:
                writer.discard()

    def check_same(self, scenario_yaml: str) -> None:
        """Raise UserError if the path already holds the result of another scenario."""
        found = self.out / SCENARIO
        try:
            stands = found.read_text(encoding="utf-8") if found.is_file() else scenario_yaml
        except (OSError, ValueError):
            return  # damaged, so nothing is lost
        if stands != scenario_yaml:
            raise UserError(f"--out {self.out}: contains the result of a different scenario (--overwrite replaces it)")

    def add(self, file: str, rows: Rows) -> None:
        """Append a chunk to one of the STREAMED tables."""
        import pyarrow as pa

        table = pa.table({name: arrow_array(rows[:, i]) for i, name in enumerate(STREAMED[file])})
        # Columns of counts and times: delta encoding is both smaller and faster than dictionary encoding.
        self.add_table(file, table, use_dictionary=False, column_encoding="DELTA_BINARY_PACKED")

    def add_table(self, file: str, table: Any, **encoding: Any) -> None:
        """Append a pyarrow table to a file."""
        import pyarrow.parquet as pq

        with writable(self.out):
            if file not in self._open:
                self._open[file] = pq.ParquetWriter(self.partial / file, table.schema, compression="zstd", **encoding)
            self._open[file].write_table(table)

    def finish(
        self,
        summary: Mapping[str, Any],
        requests: Any,
        scenario_yaml: str,
        timing: Mapping[str, Any],
        samples: Any = None,
        page: Callable[[Path], object] | None = None,
    ) -> None:
        """Write the rest and put the directory in place. `page` writes the report of the whole directory into it;
        `requests` is a pyarrow table, unless it has been written; `samples` is another one, if requests have several
        samples, unless it has been written."""
        import pyarrow.parquet as pq

        written = {REQUESTS, SAMPLES} & {*self._open}
        for file in STREAMED.keys() - self._open.keys():  # no rows: still write an empty table
            self.add(file, np.empty((0, len(STREAMED[file])), dtype=np.int64))
        with writable(self.out):
            self._close()
            if REQUESTS not in written:
                pq.write_table(requests, self.partial / REQUESTS, compression="zstd")
            if samples is not None and SAMPLES not in written:
                pq.write_table(samples, self.partial / SAMPLES, compression="zstd")
            (self.partial / SUMMARY).write_text(to_json(summary), encoding="utf-8")
            (self.partial / SCENARIO).write_text(scenario_yaml, encoding="utf-8")
            text = to_json({**timing, DIGESTS: digests(self.partial)})
            (self.partial / TIMING).write_text(text, encoding="utf-8")
            try:
                if page is not None:
                    page(self.partial)
            except Interrupted:
                self._put_in_place()
                raise Interrupted(
                    f"{self.out} is complete except for its report. To write the report, run servesim report {self.out}"
                ) from None
            self._put_in_place()

    def _put_in_place(self) -> None:
        """Rename into place. If several writers finish at the same time, the last result stays: a writer moves away any
        result that got there first."""
        replaced = self.partial.with_suffix(REPLACED)
        while True:
            _refuse_foreign(self.out)
            try:
                self.partial.rename(self.out)
                return
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            with suppress(FileNotFoundError):  # another writer has moved it away
                self.out.rename(replaced)
                try:
                    self.partial.rename(self.out)
                    return
                except OSError as error:
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                        replaced.rename(self.out)
                        raise
                finally:
                    shutil.rmtree(replaced, ignore_errors=True)

    def discard(self) -> None:
        """Remove everything written so far; do nothing after `finish`."""
        self._close()
        shutil.rmtree(self.partial, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        for folder in self._new:
            with suppress(OSError):  # not empty: it holds the result
                folder.rmdir()

    def _close(self) -> None:
        for writer in self._open.values():
            writer.close()
        self._open.clear()


def locked(folder: Path) -> int | None:
    """Lock a folder as long as this process holds it open; return None if another process has the lock, or locks are
    not supported."""
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def clear_up(out: Path) -> None:
    """Remove unfinished results of other runs with the same `out` whose processes are gone and so hold no lock. Restore
    an earlier result that such a run had moved away, unless another result has taken its place."""
    for suffix in (REPLACED, ".partial"):
        for left in sorted(out.parent.glob(f"{glob.escape(out.name)}.*{suffix}")):
            pid = left.name[len(out.name) + 1 : -len(suffix)]
            if not (pid.isascii() and pid.isdecimal()) or left.is_symlink() or _alive(int(pid)):
                continue
            with suppress(OSError):
                if not left.is_dir():
                    if suffix != REPLACED:
                        left.unlink()
                    continue
                if (handle := locked(left)) is None:
                    continue
                if suffix == REPLACED and not out.exists():
                    left.rename(out)
                else:
                    shutil.rmtree(left)
                os.close(handle)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # another user's
        return True
    return True


@contextmanager
def writable(out: Path) -> Iterator[None]:
    """Turn an OSError raised while writing to `out` into a UserError that names the path."""
    try:
        yield
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written: {error.strerror or error}") from error


def arrow_array(values: Numbers, valid: NDArray[np.bool_] | None = None) -> Any:
    """Return int64 or float64 values as an Arrow array, with nulls at positions that are not `valid`.

    It is built from buffers because `pyarrow.array` imports pandas, which a run does not otherwise need.
    """
    import pyarrow as pa

    kind = pa.int64() if values.dtype == np.int64 else pa.float64()
    mask = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    return pa.Array.from_buffers(kind, len(values), [mask, pa.py_buffer(np.ascontiguousarray(values))])


def arrow_strings(values: Sequence[str]) -> Any:
    """Return strings as an Arrow array, also built from buffers."""
    import pyarrow as pa

    encoded = [value.encode() for value in values]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded)))


def numpy_array(column: Any) -> NDArray[Any]:
    """Return a pyarrow column as an array: int64 and float64 values, the former as float64 if some are null (NaN), and
    anything else as objects. It is built from buffers because pyarrow's `to_numpy` imports pandas too."""
    import pyarrow as pa

    array = column.combine_chunks()
    if array.type not in (pa.int64(), pa.float64()):
        return np.array(array.to_pylist(), dtype=object)
    mask, values = array.buffers()
    found = np.frombuffer(values or b"", str(array.type), len(array), 8 * array.offset)
    if not array.null_count:
        return found
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
    return np.where(bits[array.offset : array.offset + len(array)], found, np.nan)


def to_json(value: Mapping[str, Any]) -> str:
    """Return JSON with sorted keys; NaN and infinity are not allowed."""
    return json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n"


def write_text(path: Path, text: str, option: str) -> None:
    """Write the file that a command-line option names, completely or not at all; a device or pipe is written to
    directly."""
    special = path.exists() and not path.is_file()
    scratch = path.with_name(path.name + ".partial") if path.name and not special else path
    try:
        scratch.write_text(text, encoding="utf-8")
        if special:
            return
        scratch.replace(path)
    except OSError as error:
        if scratch != path:
            with suppress(OSError):
                scratch.unlink()
        raise UserError(f"{option} {path}: cannot be written: {error.strerror}") from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn an error raised while reading `path` into a UserError that names the path."""
    try:
        yield
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{path}: damaged result: {error}") from error


def _refuse_foreign(out: Path) -> None:
    """Raise UserError if a result would replace anything but an earlier result."""
    if not out.name:
        raise UserError(f'--out "{out}": is not the name of a directory')
    if out.is_symlink():
        raise UserError(f"--out {out}: is a symbolic link; give the path of the directory itself")
    try:
        found = list(out.iterdir())
    except FileNotFoundError:  # another writer may have just moved it away
        return
    except NotADirectoryError as error:
        what = "exists and is not a directory" if out.exists() else f"cannot be written: {error.strerror}"
        raise UserError(f"--out {out}: {what}") from None
    except OSError as error:
        raise UserError(f"--out {out}: cannot be read: {error.strerror}") from error
    foreign = sorted(p.name for p in found if p.name not in FILES or p.is_dir())
    if foreign:
        raise UserError(f"--out {out}: exists and is not a servesim result (it contains {foreign[0]})")
