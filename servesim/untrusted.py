"""Readers of untrusted input: text, JSON and YAML within limits, without duplicate keys, and with finite numbers.

Every reader of an external file uses this module. Any input results in either a value or one UserError.
"""

from __future__ import annotations

import gzip
import itertools
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from servesim.compressed import DAMAGED, open_text
from servesim.errors import UserError, shown
from servesim.limits import SETTING, limits, too_much


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
    return _constructed(lambda: LimitedLoader(text, limits()).get_single_data(), where, yaml.YAMLError)


def parse_documents(text: str, where: object) -> list[Any]:
    """Return all YAML documents in a string, as `parse_yaml` returns one."""
    import yaml

    from servesim.yaml_limits import LimitedLoader

    if len(text) > limits().yaml:
        raise too_much(where, "bytes of YAML are", "yaml")

    def every() -> list[Any]:
        loader = LimitedLoader(text, limits())
        found = []
        while loader.check_data():  # type: ignore[no-untyped-call]
            found.append(loader.get_data())
        return found

    found: list[Any] = _constructed(every, where, yaml.YAMLError)
    return found


def _constructed(make: Callable[[], Any], where: object, faults: type[Exception]) -> Any:
    try:
        value = make()
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
