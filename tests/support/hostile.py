"""Hostile inputs for every reader: what broke one before, and pieces of valid files cut, doubled and mixed by a seed.

`python -m tests.support.hostile --inputs 10000 --commands 300` reads that many in this process and runs that many
commands, each in a process of its own, and prints what was not one line, 2 seconds and a gigabyte.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from servesim import untrusted
from servesim.errors import MOST_LINE, UserError

HEAD = b'{"servesim_trace": 1}\n'
ROW = b'{"arrival_ns": 0, "prompt_len": 3, "output_len": 2}\n'
CONFIG = {
    "model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 512,
}  # fmt: skip
VALID: tuple[bytes, ...] = (
    HEAD + ROW * 3,
    HEAD + b'{"arrival_ns": 0, "prompt_len": 6, "output_len": 2, "content": [[7, 3], [9, 3]], "samples": [2, 1]}\n',
    b"arrival_ns,prompt_len,output_len\n0,3,2\n5,4,1\n",
    b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
    b"2023-11-16 18:15:50.9951690,396,109\n",
    b'{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}\n' * 2,
    b'{"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.1, "input_length": 9, "output_length": 2, "type": "text", "turn": 1, "hash_ids": [1]}\n',  # noqa: E501
    json.dumps(CONFIG).encode(),
    b"trace: synth:rate=5\nmodel: llama-3.1-8b\ngpu: h200\nrequests: 5\nslo: {ttft: 500}\n"
    b"engine: {max_model_len: 4096}\n",
    b"engine: vllm 0.23.0\ngpus: [h100]\nexposed: {constant: 1.0e6}\noverlapped: {constant: 2.0e6}\nprovenance: {}\n",
    b"memory_bytes: 1\nbandwidth: 1\nnvlink_bandwidth: 1\npcie_bandwidth: 1\nusd_per_hour: 1\nflops: {bf16: 1}\n"
    b"description: x\ntables: null\n",
    b'{"row": 0, "right": "1101"}\n{"row": 1, "right": "0"}\n',
    b"format: servesim acceptance 1\ndomains: {all: {drafts: [3], accepted: [2, 1, 0]}}\n",
    b"t_us,dt_us,cpu_us,pieces\n1,2,3,5+0 1+7\n",
)
"""A little of every kind of file that servesim reads."""
CORPUS: tuple[bytes, ...] = (
    HEAD + b'{"arrival_ns": null, "prompt_len": 3, "output_len": 2}\n',
    HEAD + b'{"arrival_ns": 0, "prompt_len": 3, "output_len": 2, "content": [[Infinity, 3]]}\n',
    HEAD + b'{"arrival_ns": 0, "prompt_len": 3, "output_len": 2, "content": [[1180591620717411303424, 3]]}\n',
    HEAD + b'{"arrival_ns": 0, "prompt_len": 3, "output_len": 2, "request_id": "\\ud800"}\n',
    HEAD + b'{"arrival_ns": 0, "prompt_len": 3, "output_len": 2, "n": 1000000000}\n',
    HEAD + b'{"arrival_ns": 4611686018427387904, "prompt_len": 3, "output_len": 2}\n',
    b'{"servesim_trace": 1, "notes": 5}\n' + ROW,
    b"[" * 5_000, b"{" * 5_000, b'{"a":' * 5_000, b"- " * 5_000 + b"1", b"shape: &a [*a]",
    b"seed: " + b"9" * 5_000, b"9" * 100_000, b"\xff\xfe\x00", b"", b"\n" * 10_000, b"\x00" * 1_000,
    b"arrival_ns,prompt_len,output_len,n\n0,1,1,1000000000\n",
    b"arrival_ns,prompt_len,output_len,prompt_len\n0,1,1,1\n",
    b"arrival_ns,prompt_len,output_len\n0,9223372036854775808,1\n",
    b"slo_classes: &a [x, x, x, x, x, x, x, x, x]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a]\n"
    + b"".join(b"%c: &%c [%s]\n" % (99 + i, 99 + i, b", ".join([b"*%c" % (98 + i)] * 9)) for i in range(9)),
    gzip.compress(HEAD + ROW * 1_000_000), gzip.compress(HEAD + ROW)[:30], b"PAR1", b'{"a": 1, "a": 2}',
    b"a: 1\na: 2\n", b"gpus: 5\n", b"a: 2020-13-45\n", b'a: "\\ud800"\n', b"!!python/object/apply:os.getpid []\n",
)  # fmt: skip
"""What ended in a traceback, without end or in more memory than there is."""
PIECES = (
    b"null", b"true", b"-1", b"1e999", b"NaN", b"1.5", b"0", b"9223372036854775808", b'"\\ud800"', b"[]", b"{}", b"[[",
    b'"', b"\x00", b"\xff", b"\x1b[31m", b"\r", b"\n", b",", b":", b"&a", b"*a", b"- ", b"{", b"}", b"~",
    b'"' + b"x" * 50_000, b"9" * 400, b"\xf0\x9f\x98\x80", b"=cmd|x",
)  # fmt: skip


def hostile(seed: int) -> bytes:
    """Return an input: one of CORPUS at first, then valid ones with pieces cut, doubled, exchanged or put in."""
    if seed < len(CORPUS):
        return CORPUS[seed]
    draw = random.Random(seed)
    data = bytearray(draw.choice(VALID))
    for _ in range(draw.randint(1, 6)):
        at = draw.randrange(len(data) + 1)
        until = min(len(data), at + draw.choice((0, 1, 1, 3, 10, 60)))
        kind = draw.randrange(5)
        if kind == 0:
            del data[at:until]
        elif kind == 1:
            data[at:at] = data[at:until] * draw.choice((1, 2, 50))
        elif kind == 2:
            data[at:until] = draw.choice(PIECES)
        elif kind == 3:
            words = bytes(data).replace(b",", b" ,").replace(b":", b": ").split()
            if words:
                data = bytearray(bytes(data).replace(draw.choice(words).strip(b"{}[]"), draw.choice(PIECES), 1))
        else:
            other = draw.choice(VALID)
            start = draw.randrange(len(other))
            data[at:at] = other[start : start + draw.randrange(80)]
    found = bytes(data)
    return gzip.compress(found) if draw.random() < 0.05 else found


def readers() -> dict[str, Callable[[Path], Any]]:
    """Return all that read a file that others wrote, by what they read."""
    from servesim.calibrate.engines import read_steps_csv
    from servesim.calibrate.importers.columns import read_columns
    from servesim.cost.host import HostTerms
    from servesim.cost.tables import KernelTables
    from servesim.experiments.recording_formats import read_folder
    from servesim.hardware.gpu import Gpu
    from servesim.hardware.model import ModelSpec
    from servesim.run.result import Result
    from servesim.run.scenario import Scenario
    from servesim.run.setting_names import load_settings
    from servesim.traces import load_trace
    from servesim.traces.acceptance.measured import Measured, MeasuredParams
    from servesim.traces.acceptance.recorded import Recorded, RecordedParams
    from servesim.traces.presets import servegen
    from servesim_lab.cells import read_cells

    return {
        "trace": load_trace,
        "JSON": untrusted.read_json,
        "YAML": untrusted.read_yaml,
        "scenario": lambda path: Scenario.of(load_settings(path)),
        "model": lambda path: ModelSpec.load(str(path)),
        "host terms": lambda path: HostTerms.load(str(path)),
        "data sheet": lambda path: Gpu.load(str(path)),
        "recording": lambda path: read_folder(path),
        "recorded acceptance": lambda path: Recorded(RecordedParams(path=str(path)), 0),
        "measured acceptance": lambda path: Measured(MeasuredParams(table=str(path)), 0),
        "ServeGen profile": servegen._profile,
        "columns": lambda path: read_columns(path, ["arrival_ns"], ["prompt_len"]),
        "cells": lambda path: read_cells(path, "vllm"),
        "steps": read_steps_csv,
        "tables": lambda path: KernelTables.load(str(path)),
        "result": Result.load,
    }


SUFFIX = {"model": ".json", "measured acceptance": ".yaml", "host terms": ".yaml", "data sheet": ".yaml"}


RUNAWAY_S = 60
"""Of the processor, which no reader takes that does not multiply what it is given."""


def fault(read: Callable[[Path], Any], path: Path) -> str:
    """Return what is wrong with how a reader takes a file; empty: it returns, or raises one UserError."""
    begin = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a line too many
            read(path)
    except UserError as error:
        told = str(error)
        if not (told.isprintable() and 0 < len(told) <= MOST_LINE):
            return f"a line of {len(told)} characters"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:100]}"
    took = time.process_time() - begin
    return f"{took:.1f} s" if took > RUNAWAY_S else ""


SECONDS = 120
"""Of the clock, after which a command is ended: it waits for something."""
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("run", "--trace", "{}", "--model", "llama-3.1-8b", "--gpu", "h200", "--requests", "5", "--out", "{out}"),
    ("run", "{}", "--requests", "5", "--out", "{out}"),
    ("run", "--trace", "synth:rate=5", "--requests", "3", "--model", "{}", "--gpu", "h200", "--out", "{out}"),
    ("run", "--trace", "synth:rate=5", "--requests", "3", "--model", "llama-3.1-8b", "--gpu", "{}", "--out", "{out}"),
    ("trace", "inspect", "{}"),
    ("report", "{folder}"),
    ("export", "{folder}", "--to", "csv", "-o", "{out}"),
)


def command(number: int, folder: Path) -> tuple[str, float, int]:
    """Run a command on a hostile input in a process of its own. Return what is wrong (empty: nothing, or `taken` where
    the input is one that can be read), and the seconds of the processor and the MiB it took."""
    place, out = folder / "in", folder / "out"
    shutil.rmtree(folder, ignore_errors=True)
    place.mkdir(parents=True)
    arguments = COMMANDS[number % len(COMMANDS)]
    suffix = ".yaml" if number % len(COMMANDS) in (1, 3) else ".json"
    path = place / f"x{suffix}"
    path.write_bytes(hostile(number))
    (place / "summary.json").write_bytes(hostile(number))
    return run_alone([each.format(path, out=out, folder=place) for each in arguments], folder)


def run_alone(arguments: list[str], folder: Path) -> tuple[str, float, int]:
    """Run a command in a process of its own, within a folder. Return what is wrong (empty: nothing, or `taken` where it
    ends well), and the seconds of the processor and the MiB it took."""
    told = folder.with_name("told")
    before = sorted(folder.rglob("*"))
    child = os.fork()
    if not child:
        _command(arguments, told, folder)
    _, status, used = os.wait4(child, 0)
    took, code, mib = used.ru_utime + used.ru_stime, os.waitstatus_to_exitcode(status), used.ru_maxrss >> 10
    lines = told.read_text(errors="replace").splitlines()
    if code == 0:
        return "taken", took, mib
    left = [str(each) for each in sorted(folder.rglob("*")) if each not in before]
    faults = {
        f"exit {code}": code != 2,
        f"{len(lines)} lines: {lines[:1]}": len(lines) != 1,
        "a line too long": bool(lines) and len(lines[0]) > 300 + len(str(folder)) + len("/in/x.yaml"),
        f"left {left}": bool(left),
        f"{mib} MiB": mib > 1024,
    }
    return "; ".join(each for each, found in faults.items() if found), took, mib


def _command(arguments: list[str], told: Path, folder: Path) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (RUNAWAY_S, RUNAWAY_S))
    signal.alarm(SECONDS)
    os.chdir(folder)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(told, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")  # pytest has put others there
    sys.argv = ["servesim", *arguments]
    from servesim.cli.app import main as entry

    try:
        entry()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 99
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    """Read inputs, run commands, print what is wrong and how many were refused."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--commands", type=int, default=300)
    options = parser.parse_args()
    found: Counter[str] = Counter()
    every = readers()
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(options.inputs):
            name = list(every)[number % len(every)] if number >= len(CORPUS) else ""
            for reader in [name] if name else every:
                path = Path(scratch) / f"x{SUFFIX.get(reader, '.json')}"
                path.write_bytes(hostile(number))
                if wrong := fault(every[reader], path):
                    found["wrong"] += 1
                    print(f"input {number}, {reader}: {wrong}", flush=True)
        import servesim.cli.app

        assert servesim.cli.app.app
        slowest, largest = 0.0, 0
        for number in range(options.commands):
            wrong, took, mib = command(number, Path(scratch) / "command")
            slowest, largest = max(slowest, took), max(largest, mib)
            found[wrong if wrong == "taken" else "wrong command" if wrong else "refused"] += 1
            if wrong not in ("", "taken"):
                print(f"command {number}, {COMMANDS[number % len(COMMANDS)][0]}: {wrong}", flush=True)
    worst = f"{slowest:.2f} CPU s and {largest} MiB at most"
    print(f"{options.inputs} inputs, {options.commands} commands: {dict(found)}; {worst}")


if __name__ == "__main__":
    main()
