"""Readers of untrusted input: text, JSON and YAML within limits, without duplicate keys, and with finite numbers.

Every reader of an external file uses this module. Any input results in either a value or one UserError. The environment
variable SERVESIM_LIMITS raises (or lowers) limits: `SERVESIM_LIMITS=rows=1e9,depth=500`.
"""

from __future__ import annotations

import gzip
import io
import itertools
import json
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from servesim.errors import UserError, shown

if TYPE_CHECKING:
    from servesim.yaml_limits import LimitedLoader

SETTING = "SERVESIM_LIMITS"
GZIP = b"\x1f\x8b"
ZSTD = b"\x28\xb5\x2f\xfd"
DAMAGED = "the compressed file is damaged or cut short"
BLOCK = 1 << 20
FREELY_UNPACKED = 16 << 20
"""Number of bytes to which any compressed file may expand; beyond it, the ratio is checked for each further part of
this size."""


@dataclass(frozen=True)
class Limits:
    """Limits on the memory and size of a file's content, far above those of public traces and models."""

    bytes: int = 64 << 30
    """Bytes of a file of rows, uncompressed."""
    ratio: int = 100
    """Uncompressed bytes per compressed byte, of a file and of every 16 MiB within it. Traces in CSV or JSON have
    ratios of 3 to 20."""
    line: int = 64 << 20
    """Bytes of one line."""
    rows: int = 100_000_000
    """Requests of a trace, counting all samples."""
    samples: int = 16_384
    """Answers to one request; vLLM's default limit is the same (VLLM_MAX_N_SEQUENCES)."""
    document: int = 1 << 30
    """Bytes of a JSON document, which is read completely."""
    yaml: int = 8 << 20
    """Bytes of a YAML document."""
    nodes: int = 200_000
    """Values in a YAML document, with those behind an alias counted at each use."""
    depth: int = 100
    """Nesting depth of lists and objects."""
    columns: int = 2000
    """Maximum number of columns in a table, or of distinct keys in its rows."""
    stdin: int = 1 << 30
    """Maximum size in bytes of standard input, which is copied to a temporary file."""
    fetch: int = 4 << 30
    """Maximum size in bytes of a download of unknown size."""


def limits() -> Limits:
    """Return the limits in force; raise UserError if SERVESIM_LIMITS is not name=number,...."""
    return _parsed(os.environ.get(SETTING, ""))


@lru_cache(maxsize=8)
def _parsed(text: str) -> Limits:
    known = {field.name for field in fields(Limits)}
    found = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, _, value = part.partition("=")
        try:
            number = float(value)
        except ValueError:
            number = 0.0
        if name not in known or not 1 <= number < 1 << 62:
            raise UserError(f"{SETTING}: {shown(part)} is not NAME=NUMBER; names are {', '.join(sorted(known))}")
        found[name] = int(number)
    return Limits(**found)


def too_much(where: object, what: str, name: str) -> UserError:
    """Return the error for an exceeded limit, which states how to raise it."""
    most: int = getattr(limits(), name)
    return UserError(f"{where}: {what} more than {most:,} (to allow it, set {SETTING}={name}=N)")


def _most_unpacked(packed: int) -> int:
    return max(FREELY_UNPACKED, packed * limits().ratio)


class _Counted:
    """Pipe that knows how many of its bytes have been read."""

    def __init__(self, source: Any) -> None:
        self._source, self._count = source, 0

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._source.read(size)
        self._count += len(data)
        return data

    def tell(self) -> int:
        return self._count

    def close(self) -> None:
        self._source.close()


class _Bounded(io.RawIOBase):
    """Reader that counts the bytes of a file: in total, per line and, if the file is compressed, relative to the
    compressed bytes read. `packed` is the compressed file, whose position tells how much of it has been read."""

    def __init__(self, path: Path, source: Any, packed: Any = None) -> None:
        self._path, self._source, self._packed, self._limits = path, source, packed, limits()
        self._count = self._line = 0
        self._checked = (0, 0)  # uncompressed and compressed bytes at the last check

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes; raise UserError if a limit is exceeded."""
        data = self._source.read(min(len(buffer), BLOCK))
        size = len(data)
        buffer[:size] = data
        self._count += size
        end = data.rfind(b"\n")
        self._line = size - end - 1 if end >= 0 else self._line + size
        if self._count > self._limits.bytes:
            raise too_much(self._path, "bytes of text are", "bytes")
        if self._packed is not None and self._count - self._checked[0] > FREELY_UNPACKED:
            now = self._count, self._packed.tell()
            if now[0] - self._checked[0] > (now[1] - self._checked[1]) * self._limits.ratio:
                raise too_much(self._path, "uncompressed bytes per compressed byte are", "ratio")
            self._checked = now
        if self._line > self._limits.line:
            raise too_much(self._path, "bytes of one line are", "line")
        return size

    def close(self) -> None:
        """Close the underlying files too."""
        self._source.close()
        if self._packed is not None:
            self._packed.close()
        super().close()


def open_text(path: Path, newline: str | None = None) -> TextIO:
    """Open a text file, uncompressed or compressed with gzip or zstd; reading past a limit raises UserError. Raise
    OSError if it cannot be opened."""
    text = io.TextIOWrapper(open_bytes(path), encoding="utf-8-sig", newline=newline)
    text._CHUNK_SIZE = BLOCK >> 2  # type: ignore[attr-defined]  # bytes decoded at once: fewer calls of readinto
    return text


def open_bytes(path: Path) -> io.BufferedReader:
    """Open a file in binary mode, decompressing it within the limits."""
    return io.BufferedReader(_bounded(path), BLOCK)


def _bounded(path: Path) -> _Bounded:
    if path.is_fifo():
        return _bounded_pipe(path)
    with path.open("rb") as start:
        magic, size = start.read(4), os.fstat(start.fileno()).st_size
        if magic.startswith(GZIP) and size > 18:  # ends with its uncompressed size (4 bytes) unless truncated
            start.seek(-4, os.SEEK_END)
            if int.from_bytes(start.read(4), "little") > _most_unpacked(size):
                raise too_much(path, f"{DAMAGED}, or uncompressed bytes per compressed byte are", "ratio")
    if magic.startswith(GZIP):
        packed = path.open("rb", buffering=0)
        return _Bounded(path, gzip.open(packed), packed)  # closed with text
    if magic == ZSTD:
        import pyarrow as pa

        packed = pa.OSFile(str(path))
        return _Bounded(path, pa.CompressedInputStream(packed, "zstd"), packed)
    return _Bounded(path, path.open("rb"))


def _bounded_pipe(path: Path) -> _Bounded:
    source = path.open("rb")
    counted = _Counted(source)
    packed = source.peek(2).startswith(GZIP)
    return _Bounded(path, gzip.open(counted), counted) if packed else _Bounded(path, source, None)  # type: ignore[call-overload]


@contextmanager
def reading(path: Path, newline: str | None = None) -> Iterator[TextIO]:
    """Open a text file, compressed or not, for the duration of a `with` block; raise UserError if it cannot be opened
    or read."""
    try:
        with open_text(path, newline) as file:
            yield file
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: {DAMAGED}") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error


def check_header(where: object, header: Sequence[str]) -> None:
    """Raise UserError if a table has more columns than the limit, or a column appears twice."""
    if len(header) > limits().columns:
        raise too_much(where, "columns are", "columns")
    seen: set[str] = set()
    for name in header:
        if name in seen:
            raise UserError(f"{where}: column {shown(name)} appears twice")
        seen.add(name)


def csv_rows(path: Path, named: bool = True) -> Iterator[Any]:
    """Yield the rows of a CSV file as dicts keyed by column name (like csv.DictReader) or, if not `named`, as lists;
    raise UserError if the file is not CSV or a column appears twice. If `named`, yield the header first, as a list of
    column names."""
    import csv

    with reading(path, newline="") as file:
        rows = csv.reader(file)
        try:
            if not named:
                yield from rows
                return
            header = next(rows, [])
            check_header(path, header)
            yield header
            for row in rows:
                if row:
                    yield dict(itertools.zip_longest(header, row[: len(header)]))
        except csv.Error as error:
            raise UserError(f"{path}: line {rows.line_num} is not CSV: {error}") from error


def read_text(path: Path, most: str = "document") -> str:
    """Return the text of a file, gzipped or not; raise UserError if it cannot be read or exceeds the limit that `most`
    names."""
    bound: int = getattr(limits(), most)
    with reading(path) as file:
        text = file.read(bound + 1)
    if len(text) > bound:
        raise too_much(path, "bytes of a document are", most)
    return text


def read_start(path: Path, size: int = 1 << 16) -> str:
    """Return the first `size` characters of a text file; raise UserError if it cannot be read."""
    with reading(path) as file:
        return file.read(size)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


def _unique(found: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(found)
    if len(value) != len(found):
        seen: set[str] = set()
        again = next(key for key, _ in found if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"key {shown(again)} appears twice")
    return value


def _finite(text: str) -> float:
    value = float(text)
    if value - value != 0:
        raise ValueError(f"{shown(text)} is not a finite number")
    return value


_PLAIN = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
_STRICT = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_unique)


def json_value(text: str) -> Any:
    """Parse JSON; raise ValueError for duplicate keys, non-finite numbers, invalid text, or nesting beyond the
    limit."""
    try:
        value = _STRICT.decode(text)
    except RecursionError:
        raise ValueError(_too_deep()) from None
    check_value(value)
    return value


def row_reader() -> Callable[[str], Any]:
    """Return a parser for single lines of a file that behaves like `json_value`, with a fast path for simple lines: an
    object with as many keys as the line has colons contains no nested object and no duplicate key, and a line with few
    brackets cannot be deeply nested."""
    plain, shallow = _PLAIN.decode, limits().depth - 1

    def read(line: str) -> Any:
        if "\\" not in line and line.count("[") <= shallow:
            try:
                value = plain(line)
            except RecursionError:
                raise ValueError(_too_deep()) from None
            if type(value) is dict and len(value) == line.count(":"):
                return value
        return json_value(line)

    return read


def _too_deep() -> str:
    return f"lists and objects nested more than {limits().depth} deep (to allow more, set {SETTING}=depth=N)"


def check_value(value: Any) -> None:
    """Raise ValueError if a JSON or YAML value is nested too deeply or contains text with a lone surrogate (half a
    character)."""
    most = limits().depth
    level, depth = [value], 0
    while level:
        if depth > most:
            raise ValueError(
                f"lists and objects nested {depth} deep; at most {most} levels are allowed (to allow more, set "
                f"{SETTING}=depth=N)"
            )
        within: list[Any] = []
        for each in level:
            kind = type(each)
            if kind is str:
                check_text(each)
            elif kind is list:
                within += each
            elif kind is dict:
                within += each
                within += each.values()
        level, depth = within, depth + 1


def check_text(text: str) -> None:
    """Raise ValueError if text contains a lone surrogate (half a character), which cannot be encoded in a file."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{shown(text)} has an incomplete character (a lone surrogate)") from None


def read_json(path: Path) -> Any:
    """Return the JSON document in a file; on failure, raise a UserError that names the file."""
    return parse_json(read_text(path), path)


def parse_json(text: str, where: object) -> Any:
    """Return the JSON document in a string; on failure, raise a UserError whose message begins with `where`."""
    try:
        return json_value(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: line {error.lineno} is not JSON: {error.msg}") from error
    except ValueError as error:
        raise UserError(f"{where}: not JSON: {error}") from error


def read_yaml(path: Path, what: str = "") -> Any:
    """Return the YAML document in a file; on failure, raise a UserError whose message begins with `what` and names the
    file."""
    where = f"{what} {path}".strip()
    try:
        text = read_text(path, "yaml")
    except UserError as error:
        raise UserError(f"{what} {error}".strip()) from error
    return parse_yaml(text, where)


def parse_yaml(text: str, where: object) -> Any:
    """Return the YAML document in a string, rejecting duplicate keys and limiting the expansion of aliases; on failure,
    raise a UserError whose message begins with `where`."""
    import yaml

    from servesim.yaml_limits import LimitedLoader

    if len(text) > limits().yaml:
        raise too_much(where, "bytes of YAML are", "yaml")
    return _constructed(lambda: LimitedLoader(text, limits()), where, yaml.YAMLError)


def _constructed(make: Callable[[], LimitedLoader], where: object, faults: type[Exception]) -> Any:
    try:
        value = make().get_single_data()
        if isinstance(value, str | list | dict):
            _check_yaml(value)
    except faults as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error)
        told = problem if type(error).__name__ == "RefusedYamlError" else f"not YAML: {problem}"
        raise UserError(f"{where}: {line}{told}") from error
    except (ValueError, ArithmeticError, TypeError, AttributeError, LookupError, RecursionError) as error:
        reason = str(error) if isinstance(error, ValueError) else type(error).__name__
        raise UserError(f"{where}: cannot be read as YAML: {reason}") from error
    return value


def _check_yaml(value: Any) -> None:
    """Check only the strings: depth and aliases were counted during parsing, and `.inf` is allowed."""
    level, seen = [value], set()
    while level:
        each = level.pop()
        if isinstance(each, str):
            check_text(each)
            if "\0" in each:
                raise ValueError(f"{shown(each)} has a NUL character, which no name or path may contain")
        elif isinstance(each, list | dict) and id(each) not in seen:
            seen.add(id(each))
            level += [*each, *each.values()] if isinstance(each, dict) else each
