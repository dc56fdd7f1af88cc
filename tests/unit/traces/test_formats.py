"""Formats: what is read, what is refused and in which words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from servesim.errors import UserError
from servesim.traces import load_trace, open_trace, save_trace, trace_digest
from servesim.traces.formats import detect_format, formats
from servesim.traces.formats._columns import ColumnFormat, as_module
from servesim.traces.formats.mooncake import spread
from servesim.traces.io import read_chunks
from servesim.workload.trace import LENGTH_CAPPED, Content, Trace

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224670,879,55"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:01+00:00,2399,6
"""
VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,374,44\n4.314579,396,109\n"
MOONCAKE = [
    {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]},
    {"timestamp": 3000, "input_length": 512, "output_length": 7, "hash_ids": [0]},
]
NATIVE_CSV = "arrival_ns,prompt_len,output_len\n0,10,2\n5,20,3\n"


def put(folder: Path, text: str | bytes, name: str = "trace") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_azure_clock_times_count_from_the_first_request(tmp_path: Path) -> None:
    trace = load_trace(put(tmp_path, AZURE))
    assert trace.arrival_ns.tolist() == [0, 4_314_579_000, 4_541_877_000]
    assert (trace.prompt_len.tolist(), trace.output_len.tolist()) == ([374, 396, 879], [44, 109, 55])
    assert trace.max_tokens.tolist() == [44, 109, 55]
    assert trace.content is None


def test_azure_2024_times_with_a_zone_and_without_fraction_are_read(tmp_path: Path) -> None:
    assert load_trace(put(tmp_path, AZURE_2024)).arrival_ns.tolist() == [0, 990_070_000]


def test_azure_columns_we_do_not_use_are_noted(tmp_path: Path) -> None:
    text = "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n2024-10-15T12:00:00.123Z,2,100,5\n"
    trace = load_trace(put(tmp_path, text))
    assert "columns not used: NumImages" in trace.notes


def test_vidur_seconds_become_nanoseconds(tmp_path: Path) -> None:
    assert load_trace(put(tmp_path, VIDUR)).arrival_ns.tolist() == [0, 4_314_579_000]


def test_a_format_of_columns_alone_is_a_row_of_the_table(tmp_path: Path) -> None:
    columns = {"arrival": "at", "unit": "ms", "prompt": "in", "output": "out", "labels": {"tenant": "who"}}
    module = as_module(ColumnFormat("mine", "CSV: at (ms),in,out[,who]", **columns, failed="silent ones"))
    text = "out,at,in,who\n3,1.5,40,ann\n0,2,50,bob\n4,7,60,\n"
    assert module.detect(text.encode())
    assert not module.detect(b"out,at\n")
    trace = module.read(put(tmp_path, text), sort=True)
    assert trace.arrival_ns.tolist() == [1_500_000, 7_000_000]
    assert (trace.prompt_len.tolist(), trace.output_len.tolist()) == ([40, 60], [3, 4])
    assert trace.labels == {"tenant": ("ann", "")}
    assert "1 silent ones left out" in trace.notes


def test_files_of_columns_are_the_same_in_chunks(tmp_path: Path) -> None:
    for text in (AZURE, VIDUR, VIDUR.replace("arrived_at,", "").replace("0.0,", "").replace("4.314579,", "")):
        path = put(tmp_path, text)
        stream = read_chunks(path, 1)
        assert stream is not None
        whole, parts = load_trace(path), list(stream.read())
        assert [part.arrival_ns.item() for part in parts] == whole.arrival_ns.tolist()
        assert [part.prompt_len.item() for part in parts] == whole.prompt_len.tolist()


def test_mooncake_blocks_become_runs_with_a_partial_last_one(tmp_path: Path) -> None:
    trace = load_trace(put(tmp_path, lines(MOONCAKE)))
    assert trace.content is not None
    assert trace.content.runs(0) == [(0, 512), (1, 512), (2, 76)]
    assert trace.content.runs(1) == [(0, 512)]
    assert trace.arrival_ns.tolist() == [0, 3_000_000_000]


def test_mooncake_hashes_of_64_bits_keep_their_sharing(tmp_path: Path) -> None:
    rows = [dict(MOONCAKE[0], hash_ids=[2**63 + 5, 2**64 - 1, 3]), dict(MOONCAKE[1], hash_ids=[2**63 + 5])]
    trace = load_trace(put(tmp_path, lines(rows)))
    assert trace.content is not None
    assert trace.content.ids.tolist() == [0, 1, 2, 0]


def test_spread_ticks_fills_ticks_in_order_the_same_way_every_time(tmp_path: Path) -> None:
    rows = [dict(MOONCAKE[1], timestamp=3000 * (i // 10)) for i in range(200)]
    path = put(tmp_path, lines(rows))
    raw, spread = load_trace(path), load_trace(path, spread_ticks="uniform")
    assert np.all(np.diff(spread.arrival_ns) >= 0)
    shift = (raw.arrival_ns - spread.arrival_ns) / 1e9
    assert np.all((shift <= 3.0) & (shift > -3.0))
    assert len(np.unique(spread.arrival_ns)) == 200
    assert "spread_ticks=uniform: arrivals spread over ticks of 3 s" in spread.notes
    assert trace_digest(spread) == trace_digest(load_trace(path, spread_ticks="uniform"))


def test_formats_are_told_by_content_not_by_name(tmp_path: Path) -> None:
    texts = {"azure": AZURE, "vidur": VIDUR, "mooncake": lines(MOONCAKE), "csv": NATIVE_CSV}
    for name, text in texts.items():
        assert detect_format(put(tmp_path, text, "same.txt")) == name


def test_defaults_of_the_native_csv_are_length_capped_requests(tmp_path: Path) -> None:
    trace = load_trace(put(tmp_path, NATIVE_CSV))
    assert trace.max_tokens.tolist() == [2, 3]
    assert not trace.stop.any()
    capped = load_trace(put(tmp_path, "arrival_ns,prompt_len,output_len,max_tokens\n0,10,2,8\n5,20,3,3\n"))
    assert capped.stop.tolist() == [True, False]


BAD = [
    (AZURE.replace(",396,109", ""), "line 3: 1 fields, but the header has 3"),
    (AZURE[:-6], "line 4: 2 fields, but the header has 3"),
    (AZURE.replace("396", "-396"), "line 3: ContextTokens is '-396' but must be a whole number of at least 1"),
    (AZURE.replace("109", "0"), "line 3: GeneratedTokens is '0' but must be a whole number of at least 1"),
    (AZURE.replace("109", "1.5"), "line 3: GeneratedTokens is '1.5' but must be a whole number"),
    (AZURE.replace("109", "many"), "line 3: GeneratedTokens is 'many' but must be a whole number"),
    (AZURE.replace("2023-11-16 18:15:50", "soon"), "line 3: TIMESTAMP is 'soon.9951690'"),
    (AZURE.replace("18:15:50", "18:15:20"), "line 3: arrives before the request above it"),
    (AZURE.split("\n")[0] + "\n", "a header but no requests"),
    ("num_prefill_tokens,num_decode_tokens\n1,0\n", "line 2: num_decode_tokens is '0'"),
    (VIDUR.replace("4.31", "-4.31"), "line 3: arrived_at is '-4.314579' but must be a number of at least 0"),
    (lines(MOONCAKE)[:-20], "line 2: not JSON"),
    (lines([MOONCAKE[0], dict(MOONCAKE[1], hash_ids=[0, 1])]), "line 2: 2 hash_ids for input_length 512 instead of 1"),
    (lines([MOONCAKE[0], dict(MOONCAKE[1], hash_ids=["a"])]), "line 2: hash_ids must be whole numbers"),
    (lines([MOONCAKE[0], dict(MOONCAKE[1], hash_ids=None)]), "line 2: hash_ids is None"),
    (lines([MOONCAKE[0], dict(MOONCAKE[1], input_length=True)]), "line 2: input_length is True"),
    (lines([MOONCAKE[0], {"delay": 3, "input_length": 4}]), "line 2: no 'timestamp' (ms), and no earlier turn"),
    (lines([{"servesim_trace": 1}, {"arrival_ns": 0, "prompt_len": 3}]), "line 2: no 'output_len'"),
    (lines([{"servesim_trace": 2}]), "line 1: servesim_trace is 2 but must be 1"),
    (
        lines([{"servesim_trace": 1}, {"arrival_ns": 0, "prompt_len": 3, "output_len": 1, "content": [[1, 2]]}]),
        "line 2: the token counts in content must add up to prompt_len 3",
    ),
    ("", "the file is empty"),
    (
        "hello\nworld\n",
        "unknown trace format (beginning 'hello'); each row needs a time, prompt tokens and output tokens",
    ),
    ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46+09:00,3,4\n", "line 2: TIMESTAMP is '2023-11-16 18"),
    (b"\x00\x01\xff" * 50, "unknown trace format (binary data)"),
    (b"PAR1" + b"\x00" * 50, "not a readable Parquet trace"),
    (AZURE.encode() + b"\n\xff\xfe,1,2", "not UTF-8 text"),
]


@pytest.mark.parametrize(("text", "message"), BAD, ids=[message[:40] for _, message in BAD])
def test_bad_files_are_refused_in_one_line_that_says_where(tmp_path: Path, text: str | bytes, message: str) -> None:
    path = put(tmp_path, text)
    with pytest.raises(UserError) as error:
        load_trace(path)
    assert message in str(error.value)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


def test_missing_files_folders_formats_and_options_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such trace file"):
        load_trace(tmp_path / "nothing.csv")
    with pytest.raises(UserError, match="the folder has no session files"):
        load_trace(tmp_path)
    path = put(tmp_path, AZURE)
    with pytest.raises(UserError, match=r'unknown trace format .azur.*did you mean "azure"'):
        load_trace(path, format="azur")
    with pytest.raises(UserError, match="format azure has no option 'spread_ticks'"):
        load_trace(path, spread_ticks="uniform")
    with pytest.raises(UserError, match="spread_ticks is 'even' but must be one of none, uniform"):
        load_trace(put(tmp_path, lines(MOONCAKE)), spread_ticks="even")


def test_sort_orders_rows_and_says_so(tmp_path: Path) -> None:
    trace = load_trace(put(tmp_path, AZURE.replace("18:15:50", "18:15:20")), sort=True)
    assert trace.prompt_len.tolist() == [396, 374, 879]
    assert trace.arrival_ns[0] == 0
    assert "rows sorted by arrival time" in trace.notes


def small_trace() -> Trace:
    content = Content(np.array([0, 2, 3]), np.array([7, 8, 7]), np.array([600, 30, 700]))
    return Trace.from_lengths("small", [0, 1_500_000], [630, 700], [3, 4], content=content)


def test_a_format_that_would_lose_something_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    for name in ("azure", "vidur", "csv"):
        with pytest.raises(UserError, match=f"format {name} cannot store content of trace small; write agentic-moon"):
            save_trace(small_trace(), tmp_path / "out", name)
    assert list(tmp_path.iterdir()) == []
    save_trace(small_trace(), tmp_path / "out", "azure", lossy=True)
    assert load_trace(tmp_path / "out").prompt_len.tolist() == [630, 700]


def test_a_failed_write_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(trace: Trace, path: Path) -> None:
        path.write_text("half")
        raise RuntimeError("disk on fire")

    monkeypatch.setattr(formats()["jsonl"], "write", broken)
    (tmp_path / "out").write_text("before")
    with pytest.raises(RuntimeError):
        save_trace(small_trace(), tmp_path / "out", "jsonl")
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out").read_text() == "before"


def test_mooncake_export_recuts_runs_into_blocks_of_512(tmp_path: Path) -> None:
    save_trace(small_trace(), tmp_path / "out", "mooncake")
    rows = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert rows[0] == {"timestamp": 0, "input_length": 630, "output_length": 3, "hash_ids": [0, 1]}
    # The first 512 tokens are shared; the second blocks differ (88 of 7 then 8, against 188 of 7).
    assert rows[1] == {"timestamp": 1.5, "input_length": 700, "output_length": 4, "hash_ids": [0, 2]}


def test_parquet_rows_are_checked_and_a_flipped_byte_is_noticed(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "t.parquet"
    columns = {"arrival_ns": [0, 5], "prompt_len": [3, 4], "output_len": [1, 2]}
    pq.write_table(pa.table(columns), path)
    assert load_trace(path).max_tokens.tolist() == [1, 2]
    bad: list[tuple[str, list[int | bool], str]] = [
        ("arrival_ns", [5, 0], "row 2: arrives before the request above it"),
        ("arrival_ns", [-5, 0], "row 1: arrival_ns is -5 but must be at least 0"),
        ("prompt_len", [3, 0], "row 2: prompt_len is 0 but must be at least 1"),
        ("max_tokens", [1, 1], "row 2: max_tokens is less than output_len"),
    ]
    for name, values, message in bad:
        pq.write_table(pa.table({**columns, name: values}), path)
        with pytest.raises(UserError, match=message):
            load_trace(path)
    save_trace(small_trace(), path, "parquet")
    data = bytearray(path.read_bytes())
    data[60] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(UserError, match="not a readable Parquet trace"):
        load_trace(path)


def test_the_digest_depends_on_every_column_but_not_on_the_name(tmp_path: Path) -> None:
    base = small_trace()
    same = Trace.from_lengths("other", [0, 1_500_000], [630, 700], [3, 4], content=base.content)
    assert trace_digest(base) == trace_digest(same)
    changed = [
        Trace.from_lengths("t", [0, 1_500_001], [630, 700], [3, 4], content=base.content),
        Trace.from_lengths("t", [0, 1_500_000], [630, 700], [3, 5], content=base.content),
        Trace.from_lengths("t", [0, 1_500_000], [630, 700], [3, 4]),
        Trace.from_lengths("t", [0, 1_500_000], [630, 700], [3, 4], content=base.content, request_id=("a", "b")),
    ]
    assert len({trace_digest(t) for t in [base, *changed]}) == 5


def test_open_trace_takes_files_presets_and_specs(tmp_path: Path) -> None:
    path = str(put(tmp_path, AZURE))
    assert open_trace(path, requests=2).prompt_len.tolist() == [374, 396]
    assert len(open_trace("preset:azure-conv-2023", requests=50, seed=3)) == 50
    assert open_trace("synth:rate=2,prompt=9,output=3", requests=4).prompt_len.tolist() == [9] * 4
    with pytest.raises(UserError, match="requests is 9, but the file has only 3"):
        open_trace(path, requests=9)
    with pytest.raises(UserError, match="write preset:azure-conv-2023"):
        open_trace("azure-conv-2023")
    with pytest.raises(UserError, match=r'unknown preset .azure-conv.*did you mean "azure-conv-2023"'):
        open_trace("preset:azure-conv")
    with pytest.raises(UserError, match="option 'sort' applies only to trace files"):
        open_trace("synth:rate=2", sort=True)


@pytest.mark.parametrize(("more", "noted"), [({}, True), ({"max_tokens": [9]}, False), ({"stop": [1]}, False)])
def test_a_parquet_trace_says_that_it_has_no_finish_reasons_where_nothing_tells_them(
    tmp_path: Path, more: dict[str, list[int]], noted: bool
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"arrival_ns": [0], "prompt_len": [3], "output_len": [2], **more}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    assert (LENGTH_CAPPED in load_trace(tmp_path / "t.parquet").notes) == noted


def test_two_requests_of_one_tick_are_spread_and_single_ones_stay() -> None:
    moved, note = spread(np.array([0, 0, 3, 6]))
    assert note == "spread_ticks=uniform: arrivals spread over ticks of 3e-09 s"
    assert moved.tolist() == sorted(moved.tolist())
    for single in ([0, 3, 6], [0]):
        same, note = spread(np.array(single))
        assert (same.tolist(), note) == (single, "spread_ticks=uniform has no effect: no two requests share a time")
    together, note = spread(np.array([5, 5, 5]))
    assert together.tolist() == [5, 5, 5]
    assert note.endswith("all requests share one time, which shows no tick")
