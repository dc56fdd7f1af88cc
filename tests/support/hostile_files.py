"""Hostile files, places and variables for commands: encodings, archives, Parquet, numbers, dates, keys, folders.

`python -m tests.support.hostile_files` runs each command in a process of its own with a gigabyte of memory. It prints
those that did not end with exit code 2 and one line, or left a file behind, and the number tried of each kind.
"""

# ruff: noqa: E501  # tables of inputs

from __future__ import annotations

import bz2
import gzip
import io
import json
import os
import sys
import tarfile
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.support.hostile import CONFIG, run_alone

Put = Callable[[Path], object]
HEAD = "arrival_ns,prompt_len,output_len\n"
JSONL = '{"servesim_trace": 1}\n'
LOG = "timestamp,prompt_tokens,completion_tokens\n"
SCENARIO = "trace: synth:rate=20,prompt=30,output=2\nrequests: 3\nmodel: llama-3.2-1b\ngpu: h200\n"
MODEL = ("--model", "llama-3.2-1b", "--gpu", "h200", "--out", "{}/out")
TRACE = ("run", "--trace", "{}/x", *MODEL)
SYNTH = ("run", "--trace", "synth:rate=20,prompt=30,output=2", "--requests", "3")


def _bytes(data: bytes | str) -> Put:
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    return lambda path: path.write_bytes(raw)


def _zip(*names: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name in names:
            file.writestr(name, HEAD + "0,3,2\n")
    return buffer.getvalue()


def _tar() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as file:
        file.addfile(tarfile.TarInfo("../../x"), None)
    return buffer.getvalue()


def _parquet(**columns: object) -> Put:
    def put(path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table({name: pa.array(*value) for name, value in columns.items()}), path)  # type: ignore[misc]

    return put


def _numbers(kind: str) -> list[bytes | str]:
    values = ["1e999", "-0.0", "NaN", "true", "9" * 400, "5e-324", "0x10", "1_0", "\u0663", "+-1", "''", "[1]", "null"]
    if kind == "csv":
        return [f"{HEAD}0,{value},2\n" for value in (*values, "\u00bd", "1e3e3", " ", "\u22125")]
    return [f'{JSONL}{{"arrival_ns": 0, "prompt_len": {value}, "output_len": 2}}\n' for value in values]


_ROW = HEAD + "0,3,2\n"
_GZ = gzip.compress(_ROW.encode() * 200, mtime=0)
TRACES: dict[str, list[bytes | str]] = {
    "encodings": [_ROW.encode("utf-16"), _ROW.encode("utf-16-le"), _ROW.encode("utf-32"), "\u202e" + _ROW,
                  _ROW.replace("ns", "n\0s"), HEAD.encode() + b"0,3,2\xff\n", HEAD + "0,3\u202e,2\n",
                  b"\xef\xbb\xbf\xef\xbb\xbf" + _ROW.encode(), HEAD + "0,\ud8003,2\n", HEAD + "\u2028".join("032"),
                  HEAD.replace("\n", "\r") + "0;3;2\r", "\u200b" + HEAD + "0,\u200b3,2\n"],
    "archives": [_zip("a.csv"), _zip("a.csv", "b.csv"), _zip("../x"), _tar(), bz2.compress(_ROW.encode()),
                 b"\xfd7zXZ\0" + b"\0" * 50, b"7z\xbc\xaf\x27\x1c" + b"\0" * 50, b"\x89PNG\r\n\x1a\n" + b"\0" * 50,
                 b"%PDF-1.4\n%\xe2\xe3", b"SQLite format 3\0" + b"\0" * 100, b"\x80\x04\x95pickle", b"ARROW1\0\0" * 9,
                 b"Obj\x01avro.schema", b"ORC\n"],
    "streams cut short": [*(_GZ[:n] for n in (2, 3, 9, 10, 11, 18, 25, len(_GZ) - 8, len(_GZ) - 1)), _GZ + b"\x1f\x8b",
                          _GZ + b"tail", gzip.compress(_GZ), b"\x28\xb5\x2f\xfd", b"\x28\xb5\x2f\xfd" + b"\xff" * 30,
                          gzip.compress(b""), gzip.compress(b"\n" * 99)],
    "numbers in CSV": _numbers("csv"),
    "numbers in JSON": _numbers("json"),
    "dates": [LOG + f"{date},5,5\n{date},5,5\n" for date in (
        "0000-01-01T00:00:00Z", "10000-01-01T00:00:00Z", "2023-02-29T00:00:00Z", "2023-13-01T00:00:00Z",
        "2023-01-01T24:00:01Z", "2023-01-01T00:60:00Z", "2023-01-01T00:00:61Z", "-2023-01-01T00:00:00Z", "yesterday",
        "2023-W01-1", "1e400", "infinity", "2023-01-01T00:00:00 Mars/Base")],
    "keys": [f'{JSONL}{{"arrival_ns": 0, "prompt_len": 3, "output_len": 2, {more}}}\n' for more in (
        '"prompt_len": 4', '"prompt_\\u006cen": 4', '"content": {"a": 3}', '"content": [[1, 3, 5]]', '"content": [[]]',
        '"content": [["1", "3"]]', '"after": [[0, "end", 0, "x"]]', '"after": 5', '"samples": []', '"samples": {}',
        '"samples": [true]', '"stop": 2', '"stop": []', '"priority": 1.5', '"request_id": {}', '"tenant": [1]',
        '"cancel_ns": "x"', '"n": 0', '"n": 1.5', '"content": ' + "[" * 500 + "]" * 500, '"max_tokens": 1')],
    "columns": ["arrival_ns,prompt_len,output_len,a,a\n0,1,1,1,1\n", "arrival_ns, arrival_ns,prompt_len,output_len\n0,0,1,1\n",
                HEAD + "0,1\n", HEAD + "0,1,1,1\n", HEAD + '"0,1,1\n', HEAD, "\n\n" + HEAD, "prompt_len,output_len\n1,1\n",
                HEAD + "5,1,1\n0,1,1\n", HEAD + "0,1,1\x00\n", ",,\n0,1,1\n", '"arrival_ns\n",prompt_len,output_len\n0,1,1\n'],
}  # fmt: skip
"""Files for `--trace`, by kind."""
PARQUET: list[Put] = [
    _parquet(arrival_ns=([0],), prompt_len=(["3"],), output_len=([2],)),
    _parquet(arrival_ns=([0],), prompt_len=([None],), output_len=([2],)),
    _parquet(arrival_ns=([0],), prompt_len=([3.5],), output_len=([2],)),
    _parquet(arrival_ns=([0],), prompt_len=([float("nan")],), output_len=([2],)),
    _parquet(arrival_ns=([-1],), prompt_len=([3],), output_len=([2],)),
    _parquet(arrival_ns=([],), prompt_len=([],), output_len=([],)),
    _parquet(arrival_ns=([[0]],), prompt_len=([3],), output_len=([2],)),
    _parquet(arrival_ns=([{"a": 0}],), prompt_len=([3],), output_len=([2],)),
    _parquet(arrival_ns=([b"0"],), prompt_len=([3],), output_len=([2],)),
    _parquet(arrival_ns=([0],), prompt_len=([True],), output_len=([2],)),
    _parquet(arrival_ns=([0],), prompt_len=([3],), output_len=([2],), content_ids=([[1]],)),
    _parquet(arrival_ns=([0],), prompt_len=([3],), output_len=([2],), content_ids=([[1]],), content_lengths=([[2]],)),
    _parquet(arrival_ns=([0],), prompt_len=([3],), output_len=([2],), content_ids=([1],), content_lengths=([3],)),
    _parquet(arrival_ns=([0],), prompt_len=([3],), output_len=([2],), samples=(["x"],)),
    _parquet(arrival_ns=([0],), prompt_len=([3],), output_len=([2],), stop=(["yes"],)),
    _parquet(arrival_ns=([0],), prompt_len=([3],), output_len=([2],), tenant=([5],)),
    _parquet(arrival_ns=([0],), prompt_len=([1 << 62],), output_len=([2],)),
    _parquet(a=([0],)),
    _bytes(b"PAR1" + b"\0" * 99 + b"PAR1"),
    _bytes(b"PAR1" + b"\xff" * 8 + b"PAR1"),
]
PLACES: list[Put] = [
    lambda path: path.mkdir(),
    lambda path: path.symlink_to(path),
    lambda path: path.symlink_to("/nowhere"),
    lambda path: path.symlink_to("/dev/full"),
    lambda path: path.symlink_to("/proc/self/mem"),
    lambda path: path.symlink_to("/dev/null"),
    lambda path: (path.mkdir(), (path / "a.json").mkdir()),
    lambda path: (path.mkdir(), (path / "a.json").symlink_to(path / "a.json")),
    lambda path: (path.mkdir(), (path / "a.parquet").write_bytes(b"")),
    lambda path: (path.mkdir(), (path / "summary.json").mkdir()),
    lambda path: (path.mkdir(), (path / "summary.json").write_text("[]")),
    lambda path: (path.mkdir(), (path / "summary.json").write_text("{}"), (path / "requests.parquet").write_text("")),
]  # fmt: skip
"""What stands in place of a file."""
READ_BY: tuple[tuple[str, ...], ...] = (
    TRACE, ("run", "{}/x", "--out", "{}/out"), (*SYNTH, "--model", "{}/x", "--gpu", "h200", "--out", "{}/out"),
    (*SYNTH, "--model", "llama-3.2-1b", "--gpu", "{}/x", "--out", "{}/out"), ("report", "{}/x"), ("why", "{}/x", "0"),
    ("play", "{}/x"), ("validate", "{}/x"), ("export", "{}/x", "--to", "csv", "-o", "{}/out"),
)  # fmt: skip
YAMLS: list[bytes | str] = [
    SCENARIO.encode("utf-16"), SCENARIO + "seed: 0o9\n", SCENARIO + "seed: .nan\n", SCENARIO + "requests: 3\n",
    SCENARIO + "? {a: b}\n: c\n", SCENARIO + "!!set {a}\n", SCENARIO + "seed: !!binary aGk=\n", SCENARIO + "---\na: 1\n",
    SCENARIO + "seed: 12:30:45\n", SCENARIO + "null: 1\n", SCENARIO + "true: 1\n", SCENARIO + "slo: {ttft: {a: b}}\n",
    SCENARIO + "slo: {ttft: .inf}\n", SCENARIO + "tp: 1.0e1\n", SCENARIO + "tp: '1\0'\n", SCENARIO + "<<: 5\n",
    SCENARIO + "%TAG ! x\n", SCENARIO + "\tseed: 1\n", SCENARIO + "seed: -1\n", SCENARIO + "engine: 2023-01-01\n",
    "[model]\nname = 'x'\n", '{"trace": "synth:rate=1", "trace": "x"}', "trace: [synth]\n", "- a\n- b\n", "&a x\n",
    "\ufeff\ufeff" + SCENARIO, "trace: |\n  synth:rate=20\n  \u202e\nmodel: x\ngpu: h200\n", "trace: >\n", "~\n", "..\n",
]  # fmt: skip
MODELS: list[bytes | str] = [
    *(json.dumps(CONFIG | change) for change in (
        {"hidden_size": 10**400}, {"hidden_size": True}, {"hidden_size": -0.0}, {"hidden_size": "64"}, {"num_hidden_layers": 0},
        {"num_attention_heads": 0}, {"num_key_value_heads": 3}, {"vocab_size": None}, {"model_type": ["llama"]},
        {"model_type": "\u202eamall"}, {"num_hidden_layers": 10**9}, {"head_dim": 0}, {"head_dim": -4},
        {"max_position_embeddings": 0}, {"intermediate_size": 1e300})),
    json.dumps(CONFIG)[:-1] + ', "hidden_size": 65}', json.dumps([CONFIG]), json.dumps(json.dumps(CONFIG)),
    json.dumps(CONFIG).replace("64", "1e999", 1), json.dumps(CONFIG).encode("utf-16"),
]  # fmt: skip
WORDS: list[tuple[str, ...]] = [
    *((*SYNTH, *MODEL, "--slo", value) for value in (
        "ttft:p0<1s", "ttft:p101<1s", "ttft:1e999", "ttft:-0", "ttft:\u0663", "ttft<1\u202es", "ttft:500,ttft:400",
        "ttft:500;tpot:5", "\u0442tft:500", "ttft:p99.9.9<1s", "ttft::", "ttft<", "ttft:1 000", "ttft:0x10")),
    *((*SYNTH, *MODEL, "--set", value) for value in (
        "seed", "seed=", "=1", "seed=1=2", "seed={", "seed=[", "seed=&a", "seed=*a", "engine=5", "engine.=5", ".seed=5",
        "seed=1e999", "engine.block_size=true", "engine.block_size=1_6x", "\u202eseed=1", "__class__=1", "seed.real=1")),
    *(("run", "--serve", value, "--trace", "synth:rate=1", "--requests", "3", "--gpu", "h200", "--out", "{}/out") for value in (
        "vllm", "vllm serve", "vllm serve ''", "vllm serve 'x\0'", "\u202evllm serve x", "vllm serve x -tp \u0663",
        "vllm serve x -tp 1e999", "vllm serve ../../../etc/passwd", "vllm serve $(reboot)", "vllm serve x; rm -rf /",
        "@{}", "@{}/x", "@/dev/full", "vllm serve m --config {}", "vllm serve m --config {}/x", "env", "sudo env python -m",
        "docker run", "bash -c 'bash -c \"bash -c\"'", "vllm serve x --speculative-config '{\"method\": 1e999}'")),
    *((*SYNTH, "--model", "llama-3.2-1b", "--gpu", "h200", "--out", value) for value in (
        "/dev/null", "/dev/null/x", "/proc/x", "{}", "/", "/dev/full", "x" * 300, "{}/" + "y/" * 2100)),
]  # fmt: skip
VARIABLES: list[dict[str, str]] = [
    {"SERVESIM_LIMITS": value} for value in (
        "rows", "rows=", "=5", "rows=nan", "rows=-1", "rows=1.5", "rows=1e999", "rows=0", "Rows=5", "rows=5;depth=5",
        "rows=\u202e5", "depth=true", "rows=0x10", "rows==5", "rows=2")]  # fmt: skip
"""Environment variables; a trace of three rows is read."""


def every() -> Iterator[tuple[str, tuple[str, ...], Put, dict[str, str]]]:
    """Yield all: the kind, the command (`{}`: its folder), what puts the file `x` there, and the variables."""
    for kind, files in TRACES.items():
        for data in files:
            yield kind, TRACE, _bytes(data), {}
    for put in PARQUET:
        yield "Parquet", TRACE, put, {}
    for put in PLACES:
        for command in READ_BY:
            yield "places", command, put, {}
    for data in YAMLS:
        yield "YAML", READ_BY[1], _bytes(data), {}
    for data in MODELS:
        yield "model configurations", READ_BY[2], _bytes(data), {}
    for words in WORDS:
        yield "words", words, _bytes(""), {}
    for variables in VARIABLES:
        yield "variables", TRACE, _bytes(HEAD + "0,1,1\n5,1,1\n9,1,1\n"), variables


def wrong(command: tuple[str, ...], put: Put, variables: dict[str, str], folder: Path) -> tuple[str, float, int]:
    """Run a command in an empty folder. Return what is wrong (empty: nothing; `taken`: it ends well), the seconds of
    the processor and MiB."""
    place = folder / "in"
    place.mkdir(parents=True)
    put(place / "x")
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        return run_alone([each.replace("{}", str(place)) for each in command], place)
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def main() -> None:
    """Run all, or those of the kinds given, and print what is wrong."""
    import servesim.cli.app

    assert servesim.cli.app.app
    tried: Counter[str] = Counter()
    found: Counter[str] = Counter()
    slowest, largest = 0.0, 0
    for number, (kind, command, put, variables) in enumerate(every()):
        if sys.argv[1:] and kind not in sys.argv[1:]:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            told, took, mib = wrong(command, put, variables, Path(scratch))
        tried[kind] += 1
        slowest, largest = max(slowest, took), max(largest, mib)
        found["taken" if told == "taken" else "wrong" if told else "refused"] += 1
        if told:
            print(f"{number} {kind}: {told[:300]}: {' '.join(command)[:150]!r}", flush=True)
    print(f"{dict(tried)}: {dict(found)}; {slowest:.2f} CPU s and {largest} MiB at most")
    sys.exit(bool(found["wrong"]))


if __name__ == "__main__":
    main()
