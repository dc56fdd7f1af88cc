"""A hundred mangled logs: each is read rightly or refused in one line of under 300 characters."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from servesim.cli.app import main
from servesim.errors import UserError
from servesim.traces import load_trace

Rows = list[list[Any]]
HEADER = ["timestamp", "prompt_tokens", "completion_tokens"]
MOST = 300
"""Characters of a refusal, the path of the file not counted."""
SEEDS = 5


def rows(draw: random.Random) -> Rows:
    at, found = 0, []
    for _ in range(30):
        at += draw.randrange(1, 4000)
        found.append(
            [
                f"2026-11-20T14:{at // 60_000:02d}:{at // 1000 % 60:02d}.{at % 1000:03d}Z",
                1 + draw.randrange(4000),
                1 + draw.randrange(500),
            ]
        )
    return found


def as_csv(table: Rows, header: list[str] = HEADER, separator: str = ",") -> bytes:
    return "".join(separator.join(map(str, row)) + "\n" for row in [header, *table]).encode()


def as_jsonl(table: Rows) -> bytes:
    objects = [{"timestamp": t, "usage": {"prompt_tokens": p, "completion_tokens": o}} for t, p, o in table]
    return "".join(json.dumps(row) + "\n" for row in objects).encode()


def cell(table: Rows, draw: random.Random, column: int, value: Any) -> Rows:
    table[draw.randrange(len(table))][column] = value
    return table


REFUSED: dict[str, Callable[[Rows, random.Random], bytes]] = {
    "cut in a row": lambda t, d: as_csv(t).rsplit(b",", 1)[0],
    "cut in JSON": lambda t, d: as_jsonl(t)[: -d.randrange(3, 30)],
    "swapped columns": lambda t, d: as_csv([[p, at, o] for at, p, o in t]),
    "no header": lambda t, d: as_csv(t[1:], [str(c) for c in t[0]]),
    "negative tokens": lambda t, d: as_csv(cell(t, d, 1, -d.randrange(1, 99))),
    "half a token": lambda t, d: as_csv(cell(t, d, 2, 1.5)),
    "infinite tokens": lambda t, d: as_csv(cell(t, d, 1, "inf")),
    "tokens in words": lambda t, d: as_csv(cell(t, d, 1, "twelve")),
    "more tokens than there are": lambda t, d: as_csv(cell(t, d, 1, 10**30)),
    "a time that is none": lambda t, d: as_csv(cell(t, d, 0, "yesterday")),
    "a negative time": lambda t, d: as_csv([[i - 7, p, o] for i, (_, p, o) in enumerate(t)]),
    "a NaN time": lambda t, d: as_csv([["nan" if i == 4 else i, p, o] for i, (_, p, o) in enumerate(t)]),
    "no tokens at all": lambda t, d: as_csv([[at, "NaN", o] for at, _, o in t]),
    "binary": lambda t, d: d.randbytes(2000),
    "binary in text": lambda t, d: as_csv(t)[:200] + b"\x00\xff" + as_csv(t)[200:],
    "not UTF-8": lambda t, d: as_csv(t) + b"\xe9,1,1\n",
    "deep": lambda t, d: b"[" * 5000 + b"]" * 5000,
    "deep in a row": lambda t, d: as_jsonl(t) + b'{"a":' * 3000 + b"1" + b"}" * 3000 + b"\n",
    "empty": lambda t, d: b"",
    "a header alone": lambda t, d: as_csv([]),
    "a packed file cut short": lambda t, d: gzip.compress(as_csv(t))[:-20],
    "a zstd file that is none": lambda t, d: b"\x28\xb5\x2f\xfd" + d.randbytes(300),
    "a Parquet file that is none": lambda t, d: b"PAR1" + d.randbytes(300) + b"PAR1",
    "numbers instead of objects": lambda t, d: json.dumps([p for _, p, _ in t]).encode(),
    "a column twice": lambda t, d: as_csv(t, ["timestamp", "prompt_tokens", "prompt_tokens"]),
    "a key twice": lambda t, d: as_jsonl(t) + b'{"timestamp": 1, "timestamp": 2}\n',
    "names of another world": lambda t, d: as_csv(t, ["a", "b", "c"]),
    "two times in a cell": lambda t, d: as_csv([[f'"{at} {at}"', p, o] for at, p, o in t]),
    "prose": lambda t, d: b"the requests of today,\nand those of yesterday\n",
    "no prompt": lambda t, d: as_csv(cell(t, d, 1, 0)),
}
READ: dict[str, Callable[[Rows, random.Random], bytes]] = {
    "blank lines": lambda t, d: as_csv(t).replace(b"\n", b"\n\n"),
    "Windows line ends": lambda t, d: as_csv(t).replace(b"\n", b"\r\n"),
    "a byte order mark": lambda t, d: b"\xef\xbb\xbf" + as_csv(t),
    "semicolons": lambda t, d: as_csv(t, separator=";"),
    "out of order": lambda t, d: as_csv(d.sample(t, len(t))),
    "quoted cells": lambda t, d: as_csv([[f'"{c}"' for c in row] for row in t]),
    "tokens with a fraction of zero": lambda t, d: as_csv([[at, f"{p}.0", o] for at, p, o in t]),
    "a column more": lambda t, d: as_csv([[*row, "x"] for row in t], [*HEADER, "region"]),
    "other names": lambda t, d: as_csv(t, ["Request Time", "Input Tokens", "Output Tokens"]),
    "objects": lambda t, d: as_jsonl(t),
}


def test_there_are_a_hundred() -> None:
    assert len(REFUSED) * SEEDS // 2 + len(READ) * SEEDS // 2 >= 100


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_read_is_refused_in_one_short_line(tmp_path: Path, kind: str) -> None:
    for seed in range(SEEDS):
        draw = random.Random(f"{kind} {seed}")
        path = tmp_path / "log"
        path.write_bytes(REFUSED[kind](rows(draw), draw))
        with pytest.raises(UserError) as error:
            load_trace(path)
        text = str(error.value)
        assert text.startswith(str(path))
        assert "\n" not in text
        assert len(text) - len(str(path)) < MOST, text


@pytest.mark.parametrize("kind", READ)
def test_what_can_be_read_is_read_rightly(tmp_path: Path, kind: str) -> None:
    for seed in range(SEEDS):
        draw = random.Random(f"{kind} {seed}")
        table = rows(draw)
        (tmp_path / "plain").write_bytes(as_csv(table))
        (tmp_path / "log").write_bytes(READ[kind](table, draw))
        plain, found = load_trace(tmp_path / "plain"), load_trace(tmp_path / "log")
        for name in ("arrival_ns", "prompt_len", "output_len"):
            assert getattr(found, name).tolist() == getattr(plain, name).tolist()


def test_a_refusal_is_exit_code_2_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").write_bytes(as_csv(rows(random.Random(1)), ["a", "b", "c"]))
    monkeypatch.setattr("sys.argv", ["servesim", "trace", "inspect", str(tmp_path / "log")])
    with pytest.raises(SystemExit) as error:
        main()
    assert error.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
