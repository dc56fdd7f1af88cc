"""Readers of files from outside: a value or one line, within limits."""

import gzip
import io
import json
import random
import tracemalloc
from pathlib import Path

import pytest

from servesim import compressed, limits, untrusted
from servesim.calibrate.engines import read_steps_csv
from servesim.calibrate.importers.columns import read_columns
from servesim.errors import MOST_LINE, MOST_SHOWN, UserError, one_line, shown, suggest
from servesim.hardware.model import ModelSpec
from servesim.run.setting_names import load_settings
from servesim.traces import load_trace, save_trace
from servesim.traces.acceptance.measured import Measured, MeasuredParams
from servesim.traces.acceptance.recorded import Recorded, RecordedParams
from servesim.traces.presets import servegen
from servesim.traces.stdin import spooled
from servesim.workload.trace import Content, Trace
from servesim.yaml_limits import LimitedLoader, RefusedYamlError
from servesim_lab.cells import read_cells
from tests.support.hostile import CORPUS, SUFFIX, fault, readers


def laughs(levels: int) -> str:
    lines = ["a: &a [1,1,1,1,1,1,1,1,1]"]
    lines += [f"{chr(98 + i)}: &{chr(98 + i)} [{','.join([f'*{chr(97 + i)}'] * 9)}]" for i in range(levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (laughs(9), "more than 200,000 values"),
        ("shape: &a [*a]", "line 1: an alias refers to a node that contains it"),
        ("[" * 5000, "more than 100 deep"),
        ("- " * 5000 + "1", "more than 100 deep"),
        (f"seed: {'9' * 5000}", "cannot be read as YAML"),
        ("a: 1\nb: 2\na: 3", "line 3: key 'a' appears twice"),
        ("a: 2020-13-45", "month"),
        ('a: "\\ud800"', "an incomplete character"),
        ('trace: "a\\0b"', "has a NUL character"),
        ('engine: [{"a\\0b": 1}]', "has a NUL character"),
        ("!!python/object/apply:os.getpid []", "constructor"),
    ],
)
def test_hostile_yaml_is_one_line(text: str, says: str) -> None:
    with pytest.raises(UserError, match=says) as error:
        untrusted.parse_yaml(text, "x.yaml")
    assert "\n" not in str(error.value)


def test_aliases_and_merged_keys_that_stay_small_are_read() -> None:
    text = "x: &x {p: 1, q: 2}\ny: {<<: *x, p: 3}\nz: {<<: *x}\nw: {<<: *x}"
    both = {"p": 1, "q": 2}
    assert untrusted.parse_yaml(text, "") == {"x": both, "y": {"p": 3, "q": 2}, "z": both, "w": both}


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', '{"a": NaN}', "[" * 100_000, '"\\ud800"', "9" * 5000, "[1e999]"])
def test_hostile_json_is_a_value_error_as_a_document_and_as_a_row(text: str) -> None:
    for parse in (untrusted.json_value, untrusted.row_reader()):
        with pytest.raises(ValueError, match=r".+"):
            parse(text)


@pytest.mark.parametrize("text", ['{"a": 1e999}', '{"a": -1e999}', '{"a": [1, 2e400]}', '{"a": ' + "9" * 400 + ".5}"])
def test_a_number_too_large_for_a_float_is_none_as_a_document_and_as_a_row(text: str) -> None:
    for parse in (untrusted.json_value, untrusted.row_reader()):
        with pytest.raises(ValueError, match="not a finite number"):
            parse(text)


def test_a_limit_is_raised_by_the_setting_and_a_wrong_setting_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.json"
    path.write_text("[" * 150 + "]" * 150)
    with pytest.raises(UserError, match=r"SERVESIM_LIMITS=depth=N"):
        untrusted.read_json(path)
    monkeypatch.setenv(limits.SETTING, "depth=200")
    assert untrusted.read_json(path)
    for wrong in ("ratio=1.5", "depth=200.1", "rows=nan", "rows=1e30", "rows"):
        monkeypatch.setenv(limits.SETTING, wrong)
        with pytest.raises(UserError, match="must have the form NAME=WHOLE NUMBER"):
            limits.limits()
    monkeypatch.setenv(limits.SETTING, "dept=200")
    with pytest.raises(UserError, match="must have the form NAME=WHOLE NUMBER"):
        limits.limits()


def test_a_file_without_end_and_one_that_unpacks_to_much_more_stop_at_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="yaml"):
        load_settings("/dev/zero")
    packed = tmp_path / "t.csv.gz"
    packed.write_bytes(gzip.compress(b"arrival_ns,prompt_len,output_len\n" + b"1,1,1\n" * 4_000_000))
    with pytest.raises(UserError, match="uncompressed bytes per compressed byte are more than 100"):
        load_trace(packed)
    packed.write_bytes(gzip.compress(b"arrival_ns,prompt_len,output_len\n" + b"1,1,1\n" * 100))
    monkeypatch.setenv(limits.SETTING, "rows=10")
    with pytest.raises(UserError, match="lines are more than 10"):
        load_trace(packed)


def test_what_is_echoed_is_short_and_printable() -> None:
    line = str(UserError(f"a\nb {'x' * 100_000} \x1b[31m\x00 '{'y z' * 9000}' \ud800"))
    assert line.isprintable()
    assert len(line) < 3 * MOST_SHOWN
    assert len(one_line("word " * 10_000)) <= MOST_LINE
    assert len(shown("x" * 10**6)) <= MOST_SHOWN
    names = [f"scheduler {i}" for i in range(99)]
    for word in ("novel", "x" * 100_000):
        assert len(str(UserError(f"unknown scheduler {shown(word)}{suggest(word, names)}"))) < 300
    assert shown(10**5000) == "a int too large to show"


HEAD = '{"servesim_trace": 1}\n'
ROW = '"prompt_len": 3, "output_len": 2'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (HEAD + f'{{"arrival_ns": null, {ROW}}}\n', "line 2: arrival_ns is None"),
        (HEAD + f'{{"arrival_ns": 0, {ROW}, "content": [[Infinity, 3]]}}\n', "Infinity is not a number"),
        (HEAD + f'{{"arrival_ns": 0, {ROW}, "content": [[{2**70}, 3]]}}\n', "content must be"),
        ('{"servesim_trace": 1, "notes": 5}\n' + f'{{"arrival_ns": 0, {ROW}}}\n', "notes are 5"),
        (HEAD + f'{{"arrival_ns": 0, {ROW}, "request_id": "\\ud800"}}\n', "an incomplete character"),
        (HEAD + f'{{"arrival_ns": 0, {ROW}, "samples": [2, 1.5]}}\n', "samples is"),
        (HEAD + f'{{"arrival_ns": 0, {ROW}, "samples": [2, true]}}\n', "samples is"),
        (HEAD + f'{{"arrival_ns": 0, {ROW}, "n": 1000000000}}\n', "samples of one request are more than 16,384"),
        (HEAD + f'{{"arrival_ns": 0, {ROW}, {ROW}}}\n', "appears twice"),
        (HEAD + f'{{"arrival_ns": 0, {ROW}, "content": [[-1, 3]]}}\n', "quotes the output of row 0"),
        (HEAD + f'{{"arrival_ns": 0, {ROW}, "content": [[-9, 3]]}}\n', "quotes the output of row 8"),
        ("arrival_ns,prompt_len,output_len,prompt_len\n0,1,1,1\n", "column 'prompt_len' appears twice"),
        ("arrival_ns,prompt_len,output_len,n\n0,1,1,1000000000\n", "SERVESIM_LIMITS=samples"),
        (f"arrival_ns,prompt_len,output_len\n0,{2**63},1\n", "prompt_len is '9223372036854775808'"),
    ],
)
def test_hostile_traces_are_one_line(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text(text)
    with pytest.raises(UserError, match=says) as error:
        load_trace(path)
    assert "\n" not in str(error.value)


def test_content_that_quotes_more_than_there_is_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t"
    rows = [{"arrival_ns": 0, "prompt_len": 3, "output_len": 2, "content": [[0, 3]]}]
    rows.append({"arrival_ns": 1, "prompt_len": 6, "output_len": 2, "content": [[0, 3], [-1, 3]]})
    path.write_text(HEAD + "".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match="line 3: content quotes 3 tokens of the output of row 0, which has only 2"):
        load_trace(path)


def test_parquet_is_as_strict_as_csv(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path, good = tmp_path / "t", {name: pa.array([1]) for name in ("arrival_ns", "prompt_len", "output_len")}
    wrong = {
        "appears twice": pa.table([pa.array([1])] * 4, names=[*good, "prompt_len"]),
        "no requests": pa.table({name: column[:0] for name, column in good.items()}),
        "lists of whole numbers": pa.table(good | {"samples": pa.array([[True]])}),
        "of type double": pa.table(good | {"stop": pa.array([1.5])}),
        "request_id is None": pa.table(good | {"request_id": pa.array([None], pa.string())}),
    }
    for says, table in wrong.items():
        pq.write_table(table, path)
        with pytest.raises(UserError, match=says):
            load_trace(path)


def test_an_unknown_architecture_is_refused_and_a_copy_may_say_what_it_is_like(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    config = {"model_type": "novel", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
    config |= {"intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 512}
    path.write_text(json.dumps(config))
    with pytest.raises(UserError, match="model_type 'novel' is unknown") as error:
        ModelSpec.load(str(path))
    assert len(str(error.value)) < 300
    path.write_text(json.dumps(config | {"model_type": "llama"}))
    assert ModelSpec.load(str(path)).num_layers == 2


def test_a_round_trip_of_quoted_outputs_is_read(tmp_path: Path) -> None:
    import numpy as np

    ids, lengths = np.array([0, 0, -1], dtype=np.int64), np.array([3, 3, 2], dtype=np.int64)
    content = Content(np.array([0, 1, 3], dtype=np.int64), ids, lengths)
    trace = Trace.from_lengths("t", [0, 1], [3, 5], [2, 2], content=content)
    for name in ("jsonl", "parquet"):
        save_trace(trace, tmp_path / name, name)
        assert load_trace(tmp_path / name).content.ids.tolist() == [0, 0, -1]


def hostile_files(folder: Path) -> dict[str, Path]:
    made = {
        "bytes": b"\xff\xfe\x00",
        "cut": gzip.compress(b"a,b\n1,2\n" * 99)[:20],
        "csv": b'a,a\n1,2\n"' + b"x" * 200_000,
        "deep": b"[" * 100_000,
        "empty": b"",
    }
    for name, data in made.items():
        (folder / f"{name}.yaml").write_bytes(data)
    return {name: folder / f"{name}.yaml" for name in [*made, "missing"]}


READERS = {
    "recorded acceptance": lambda path: Recorded(RecordedParams(path=str(path)), 0),
    "measured acceptance": lambda path: Measured(MeasuredParams(table=str(path)), 0),
    "ServeGen": servegen._profile,
    "columns": lambda path: read_columns(path, ["a"], ["b"]),
    "cells": lambda path: read_cells(path, "vllm"),
    "steps": read_steps_csv,
}


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_of_measurements_tells_in_one_line_what_is_wrong(reader: str, tmp_path: Path) -> None:
    for name, path in hostile_files(tmp_path).items():
        if (reader, name) == ("ServeGen", "empty"):  # a client that never sends
            continue
        with pytest.raises(UserError) as error:
            READERS[reader](path)
        assert len(str(error.value)) <= MOST_LINE, name


@pytest.mark.parametrize("reader", sorted(readers()))
def test_what_once_broke_a_reader_is_one_line_for_all_of_them(reader: str, tmp_path: Path) -> None:
    path = tmp_path / f"x{SUFFIX.get(reader, '.json')}"
    for number, data in enumerate(CORPUS):
        path.write_bytes(data)
        assert not (wrong := fault(readers()[reader], path)), (number, wrong)


def test_a_packed_file_that_says_it_unpacks_to_too_much_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"\n" * (compressed.FREELY_UNPACKED + 1)))
    with pytest.raises(UserError, match="uncompressed bytes per compressed byte are more than 100"):
        compressed.open_text(path)
    path.write_bytes(gzip.compress(b"\n" * compressed.FREELY_UNPACKED))
    with compressed.open_text(path) as file:
        assert file.read(1) == "\n"


@pytest.mark.parametrize("pack", ["gzip", "zstd"])
def test_every_member_of_a_packed_file_is_within_the_ratio(tmp_path: Path, pack: str) -> None:
    import pyarrow as pa

    path, noise = tmp_path / "t.csv", random.Random(1).randbytes(1 << 20)
    pieces = [noise, *[bytes(1 << 20)] * 80]  # 1 MB and 80 MB: 80 for one as a whole, thousands within
    if pack == "gzip":
        path.write_bytes(b"".join(map(gzip.compress, pieces)))
    else:
        path.write_bytes(b"".join(pa.compress(piece, "zstd", asbytes=True) for piece in pieces))
    with compressed.open_bytes(path) as file:
        assert len(file.read(1 << 20)) == 1 << 20
        with pytest.raises(UserError, match="uncompressed bytes per compressed byte are more than 100"):
            file.read(3 * compressed.FREELY_UNPACKED)


def test_a_header_with_a_million_columns_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    header = ",".join(f"c{i}" for i in range(1_000_000))
    path.write_text(f"arrival_ns,prompt_len,output_len,{header}\n")
    for read in (
        load_trace,
        lambda path: list(untrusted.csv_rows(path)),
    ):
        with pytest.raises(UserError, match=r"columns are more than 2,000 \(to allow it, set SERVESIM_LIMITS=columns"):
            read(path)


def test_columns_of_parquet_are_counted_and_only_known_ones_are_read(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path, own = tmp_path / "t", {name: pa.array([1]) for name in ("arrival_ns", "prompt_len", "output_len")}
    pq.write_table(pa.table(own | {f"c{i}": own["arrival_ns"] for i in range(2001)}), path)
    with pytest.raises(UserError, match="columns are more than 2,000"):
        load_trace(path)


@pytest.mark.parametrize("names", ["servesim's", "a log's"])
@pytest.mark.parametrize("kind", ["string", "large_string"])
def test_a_long_text_of_a_dictionary_is_not_held_once_for_each_row(tmp_path: Path, names: str, kind: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    groups, size = 50, 1000
    own = ("time_ns", "prompt_tokens", "output_tokens")
    if names == "servesim's":
        own = ("arrival_ns", "prompt_len", "output_len")
    for label in ("tenant", "prompt"):
        path = tmp_path / label
        schema = pa.schema([*((name, pa.int64()) for name in own), (label, kind)])
        with pq.ParquetWriter(path, schema) as file:
            for group in range(groups):
                times = pa.array([(group * size + row) * 10**9 for row in range(size)])
                columns = [times, pa.array([5] * size), pa.array([5] * size), pa.array(["x" * 10_000] * size, kind)]
                file.write_table(pa.table(columns, schema))
        assert path.stat().st_size < 4 << 20
        tracemalloc.start()
        if names == "servesim's" and label == "tenant":
            with pytest.raises(UserError, match="tenant has 10,000 characters but must have at most 1,000"):
                load_trace(path)
        else:
            assert len(load_trace(path)) == groups * size
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
        assert pa.default_memory_pool().max_memory() < 300 << 20
        tracemalloc.stop()


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_names_are_of_bounded_length_in_every_format(tmp_path: Path, form: str) -> None:
    path = tmp_path / "t"
    if form == "csv":
        path.write_text(f"arrival_ns,prompt_len,output_len,tenant\n0,1,1,{'x' * 1001}\n")
    else:
        path.write_text(HEAD + f'{{"arrival_ns": 0, {ROW}, "tenant": "{"x" * 1001}"}}\n')
    with pytest.raises(UserError, match=r"line 2: tenant has 1,001 characters but must have at most 1,000"):
        load_trace(path)


def test_standard_input_is_bounded_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv(limits.SETTING, "stdin=5e6")
    spooled.cache_clear()
    with Path("/dev/zero").open() as endless:
        monkeypatch.setattr("sys.stdin", endless)
        with pytest.raises(UserError, match=r"bytes of a pipe are more than 5,000,000 .* or specify a file"):
            load_trace("-")
    assert not list(tmp_path.iterdir())
    assert limits.Limits().stdin <= 1 << 30


def test_a_full_disk_under_standard_input_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"x" * 4096)))
    monkeypatch.setattr("servesim.traces.stdin.PLACE", "../../../../../../../dev/full")
    spooled.cache_clear()
    with pytest.raises(UserError, match="trace -: cannot be copied to a temporary file: No space left on device"):
        load_trace("-")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("before", ["", "p: 1\n", "p: [1, 2, 3, 4]\n"])
def test_an_alias_counts_as_what_it_stands_for_whatever_stands_before_it(before: str) -> None:
    """The mapping, two keys and a list of two numbers twice are nine values, and those before them."""
    text = before + "a: &a [1, 2]\nb: *a"
    count = 9 + {"": 0, "p: 1\n": 2, "p: [1, 2, 3, 4]\n": 6}[before]
    LimitedLoader(text, limits.Limits(nodes=count, depth=3)).get_single_data()
    for tighter in (limits.Limits(nodes=count - 1, depth=3), limits.Limits(nodes=count, depth=2)):
        with pytest.raises(RefusedYamlError):
            LimitedLoader(text, tighter).get_single_data()
