"""Logs as they are: names guessed, units told, failed requests left out, conversations found."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servesim.contracts import Warn
from servesim.errors import UserError
from servesim.run.scenario import Scenario
from servesim.run.trace_source import open_scenario
from servesim.traces import load_trace, open_trace, save_trace
from servesim.traces.formats._clock import iso_ns
from servesim.traces.formats._names import Columns, roles, unit_of
from servesim.traces.io import read_chunks
from servesim.traces.stdin import spooled
from servesim.workload.trace import COMPLETION, Trace

ROWS = [("2026-11-20T14:00:01.194Z", 388, 798), ("2026-11-20T14:00:03.531Z", 1680, 364), ("2026-11-20T14:00:04Z", 7, 3)]
ARRIVALS = [0, 2_337_000_000, 2_806_000_000]


def put(folder: Path, text: str | bytes, name: str = "log") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def csv(header: str, rows: list[tuple[Any, ...]] = ROWS, separator: str = ",") -> str:  # type: ignore[assignment]
    lines = [header.replace(",", separator), *(separator.join(map(str, row)) for row in rows)]
    return "\n".join(lines) + "\n"


def is_rows(trace: Trace) -> bool:
    lengths = (trace.prompt_len.tolist(), trace.output_len.tolist())
    return (trace.arrival_ns.tolist(), *lengths) == (ARRIVALS, [388, 1680, 7], [798, 364, 3])


@pytest.mark.parametrize(
    "header",
    [
        "Request Time,Prompt Toks,Completion Toks",
        "timestamp,prompt_tokens,completion_tokens",
        "@timestamp,inputTokenCount,outputTokenCount",
        "created_at,tokens_prompt,tokens_completion",
        "start_time,gen_ai.usage.input_tokens,gen_ai.usage.output_tokens",
        "Arrival,ISL,OSL",
        "ts,num_prefill_tokens_x,generated_tokens",
        "request_timestamp,input_len,output_len",
    ],
)
def test_names_that_logs_use_are_guessed(tmp_path: Path, header: str) -> None:
    assert is_rows(load_trace(put(tmp_path, csv(header))))


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress, lambda data: pa.compress(data, "zstd", asbytes=True)])
def test_separators_and_packed_files_are_read(tmp_path: Path, separator: str, pack: Any) -> None:
    text = csv("timestamp,prompt_tokens,completion_tokens", separator=separator).encode()
    path = put(tmp_path, b"")
    if pack is bytes or pack is gzip.compress:
        path.write_bytes(pack(text))
    else:
        with pa.output_stream(str(path), compression="zstd") as file:
            file.write(text)
    assert is_rows(load_trace(path))


def test_json_lines_documents_and_parquet_hold_the_same_log(tmp_path: Path) -> None:
    objects = [{"timestamp": t, "usage": {"prompt_tokens": p, "completion_tokens": o}} for t, p, o in ROWS]
    assert is_rows(load_trace(put(tmp_path, "".join(json.dumps(row) + "\n" for row in objects))))
    assert is_rows(load_trace(put(tmp_path, json.dumps(objects))))
    assert is_rows(load_trace(put(tmp_path, json.dumps({"meta": 1, "data": {"logs": objects}}, indent=1))))
    times = np.array([row[0].removesuffix("Z") for row in ROWS], dtype="datetime64[ms]")
    usage = pa.array([row["usage"] for row in objects])
    pq.write_table(
        pa.table({"timestamp": pa.array(times), "usage": usage, "tags": pa.array([["a"]] * 3)}), tmp_path / "p"
    )
    assert is_rows(load_trace(tmp_path / "p"))


def test_what_was_guessed_and_what_was_not_used_is_noted(tmp_path: Path) -> None:
    rows = [(*row, "x", "y") for row in ROWS]
    notes = load_trace(put(tmp_path, csv("ts,prompt_tokens,completion_tokens,region,note", rows))).notes
    assert "times from 'ts' (ISO)" in notes
    assert "prompt tokens from 'prompt_tokens', output tokens from 'completion_tokens'" in notes
    assert "extra columns not used: region, note" in notes


@pytest.mark.parametrize(("unit", "factor"), [("s", 1), ("ms", 1e3), ("us", 1e6), ("ns", 1e9)])
@pytest.mark.parametrize("start", [0, 1_763_647_201])
def test_units_of_times_are_told_by_their_size(tmp_path: Path, unit: str, factor: float, start: int) -> None:
    rows = [(round((start + 2 * i) * factor), 100, 10) for i in range(50)]
    trace = load_trace(put(tmp_path, csv("time,prompt_tokens,output_tokens", rows)))
    assert trace.arrival_ns.tolist() == [2_000_000_000 * i for i in range(50)]
    named = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}[unit]
    assert any(f"in {named}" in note for note in trace.notes)


def test_a_name_states_the_unit_and_columns_overrule_it(tmp_path: Path) -> None:
    text = csv("time_us,prompt_tokens,output_tokens", [(1_000_000, 5, 5), (1_000_500, 5, 5)])
    assert load_trace(put(tmp_path, text)).arrival_ns.tolist() == [0, 500_000]
    assert load_trace(put(tmp_path, text), columns="unit=ms").arrival_ns.tolist() == [0, 500_000_000]


OWN = "arrival_ns,prompt_len,output_len"


def held(text: str, form: str, folder: Path) -> Any:
    """Return the rows of a CSV as a file of this form, or as a DataFrame."""
    frame = pd.read_csv(io.StringIO(text))
    if form == "frame":
        return frame
    path = folder / f"log.{form}"
    if form == "csv":
        path.write_text(text)
    elif form == "parquet":
        frame.to_parquet(path)
    else:
        rows = frame.to_dict("records")
        path.write_text('{"servesim_trace": 1}\n' + "".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "frame"])
def test_a_rate_that_no_server_has_asks_for_the_unit_of_nanoseconds(tmp_path: Path, form: str) -> None:
    log = held(csv(OWN, [(1_446_000 * i, 500, 50) for i in range(200)]), form, tmp_path)
    with pytest.raises(UserError, match=r"arrival_ns gives 692 requests/s. If it is in microseconds, the rate is 0"):
        load_trace(log)
    for unit, factor in (("us", 1000), ("ns", 1)):
        trace = load_trace(log, columns=f"unit={unit}")
        assert trace.arrival_ns[1] == 1_446_000 * factor
        assert not any("microseconds" in note for note in trace.notes)
    assert load_trace(log, columns="arrival=arrival_ns,unit=us").arrival_ns[1] == 1_446_000_000


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "frame"])
@pytest.mark.parametrize(("unit", "factor"), [("milliseconds", 10**3), ("microseconds", 10**6)])
def test_clock_times_in_another_unit_than_nanoseconds_are_read_in_it(
    tmp_path: Path, form: str, unit: str, factor: int
) -> None:
    log = held(csv(OWN, [((1_763_647_201 + 2 * i) * factor, 500, 50) for i in range(20)]), form, tmp_path)
    trace = load_trace(log)
    assert trace.arrival_ns.tolist() == [2_000_000_000 * i for i in range(20)]
    assert any(f"arrival_ns read in {unit}" in note for note in trace.notes)


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_a_stream_reads_the_unit_as_the_whole_file_or_asks_for_it(tmp_path: Path, form: str) -> None:
    clock = held(csv(OWN, [((1_763_647_201 + 2 * i) * 1000, 500, 50) for i in range(20)]), form, tmp_path)
    whole, stream = load_trace(clock), read_chunks(clock, 7)
    assert stream is not None
    parts = list(stream.read())
    assert np.concatenate([part.arrival_ns for part in parts]).tolist() == whole.arrival_ns.tolist()
    assert {note for part in parts for note in part.notes} == set(whole.notes)
    asked = held(csv(OWN, [(50_000 * i, 500, 50) for i in range(200)]), form, tmp_path)
    stream = read_chunks(asked, 1000)
    assert stream is not None
    with pytest.raises(UserError, match="Choose with --columns unit=us or unit=ns"):
        next(stream.read())


def test_a_short_first_file_of_a_folder_does_not_tell_the_unit_of_the_others(tmp_path: Path) -> None:
    rows = [((1_763_647_201 + i) * 1000, 500, 50) for i in range(40)]
    for part, of in (("a", rows[:2]), ("b", rows[2:])):
        held(csv(OWN, of), "parquet", tmp_path).rename(tmp_path / f"{part}.parquet")
    folder = tmp_path / "folder"
    folder.mkdir()
    for part in "ab":
        (tmp_path / f"{part}.parquet").rename(folder / f"{part}.parquet")
    stream = read_chunks(folder, 16)
    assert stream is not None
    arrivals = np.concatenate([part.arrival_ns for part in stream.read()])
    assert arrivals.tolist() == load_trace(folder).arrival_ns.tolist() == [10**9 * i for i in range(40)]


def test_a_stream_of_csv_names_its_extra_columns(tmp_path: Path) -> None:
    stream = read_chunks(put(tmp_path, csv(f"{OWN},sesion", [(5 * i, 5, 5, 1) for i in range(9)])), 4)
    assert stream is not None
    assert all('sesion (did you mean "session"?)' in part.notes[0] for part in stream.read())


def test_bursts_and_what_servesim_wrote_are_in_nanoseconds(tmp_path: Path) -> None:
    few = load_trace(put(tmp_path, csv(OWN, [(1000 * i, 500, 50) for i in range(99)])))
    assert few.arrival_ns[1] == 1000
    burst = load_trace(put(tmp_path, csv(OWN, [(1_763_647_201 + i, 500, 50) for i in range(20)])))
    assert np.diff(burst.arrival_ns).tolist() == [1] * 19  # seconds since 1970 have the same numbers
    at_once = load_trace(put(tmp_path, csv(OWN, [(7, 500, 50)] * 200)))
    assert at_once.arrival_ns[1] == 7
    fast = Trace.from_lengths("t", [1_446_000 * i for i in range(200)], [5] * 200, [5] * 200)
    for form in ("csv", "jsonl", "parquet"):
        save_trace(fast, tmp_path / form, form)
        assert load_trace(tmp_path / form).arrival_ns.tolist() == fast.arrival_ns.tolist()
        assert not any("microseconds" in note for note in load_trace(tmp_path / form).notes)


def test_a_name_that_gives_a_rate_no_server_has_is_asked_about(tmp_path: Path) -> None:
    path = put(tmp_path, csv("time_us,prompt_tokens,output_tokens", [(1446 * i, 5, 5) for i in range(200)]))
    with pytest.raises(
        UserError, match=r"time_us: in microseconds, as its name indicates, it gives 692 requests/s. Choose"
    ):
        load_trace(path)
    assert load_trace(path, columns="unit=ms").arrival_ns[1] == 1_446_000_000
    since_1970 = [((1_763_647_201 + 2 * i) * 1000, 5, 5) for i in range(200)]
    assert load_trace(put(tmp_path, csv("time_ns,prompt_tokens,output_tokens", since_1970))).arrival_ns[1] == 2 * 10**9


def test_columns_read_any_names_and_numbers_stand_for_columns(tmp_path: Path) -> None:
    path = put(tmp_path, csv('a b,"c",d', ROWS))
    assert is_rows(load_trace(path, columns="arrival='a b',prompt=c,output=d"))
    assert load_trace(path, columns={"arrival": "a b", "prompt": 2000, "output": "d"}).prompt_len.tolist() == [2000] * 3
    untimed = load_trace(path, columns="arrival=,prompt=c,output=d")
    assert untimed.arrival_ns.tolist() == [0, 0, 0]
    assert any("no times" in note for note in untimed.notes)
    for wrong, says in (
        ("arival=x", "arrival"),
        ("prompt=zz", "no column 'zz'"),
        ("unit=h", "unit is 'h'"),
        ("a", "MEANING"),
    ):
        with pytest.raises(UserError, match=says):
            load_trace(path, columns=wrong)


def test_failed_requests_and_those_without_tokens_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = [(1, 10, 5, 200), (2, 10, 0, 200), (3, 10, 5, 503), (4, "", 5, 200), (5, 20, 6, 200)]
    trace = load_trace(put(tmp_path, csv("time,prompt_tokens,output_tokens,status", rows)))
    assert trace.prompt_len.tolist() == [10, 20]
    (failed,) = (
        note for note in trace.notes if note.startswith("skipped 1 of 5 requests because they failed ('status')")
    )
    assert isinstance(failed, Warn)  # a fifth of the demand is missing from the rate
    assert "Raise it with --rate" in failed
    assert "skipped 2 of 5 requests because they have no prompt or output tokens" in trace.notes


def test_a_status_of_unknown_meaning_counts_as_completed_and_a_warning_says_so_once(tmp_path: Path) -> None:
    words = ("weird", "OK", "weird", "200", "odd", "timed out", "stop", "200 OK", "503 gone", "500.0")
    rows = [(i, 10, 5, word) for i, word in enumerate(words)]
    trace = load_trace(put(tmp_path, csv("time,prompt_tokens,output_tokens,status", rows)))
    assert len(trace) == 7
    assert [note for note in trace.notes if isinstance(note, Warn) and "count as completed" in note] == [
        "3 of 10 rows count as completed, although their 'status' is of unknown meaning: 'weird' (2), 'odd' (1); if "
        "they failed, write error there, or remove them"
    ]


@pytest.mark.parametrize("word", ["ok", "Success", "completed", "stop", "length", "200", "204.0", "true", ""])
def test_a_status_of_success_is_not_warned_about(tmp_path: Path, word: str) -> None:
    trace = load_trace(put(tmp_path, csv("time,prompt_tokens,output_tokens,status", [(1, 10, 5, word)])))
    assert not any("unknown meaning" in note for note in trace.notes)


def test_rows_of_a_log_are_put_in_order_of_time(tmp_path: Path) -> None:
    trace = load_trace(put(tmp_path, csv("timestamp,prompt_tokens,completion_tokens", [ROWS[2], ROWS[0], ROWS[1]])))
    assert is_rows(trace)
    assert "rows sorted by arrival time" in trace.notes


def test_an_end_and_a_latency_make_an_arrival(tmp_path: Path) -> None:
    rows = [("2026-01-01T00:00:10Z", 100, 10, 4000), ("2026-01-01T00:00:12Z", 100, 10, 1000)]
    trace = load_trace(put(tmp_path, csv("completed_at,prompt_tokens,completion_tokens,latency_ms", rows)))
    assert trace.arrival_ns.tolist() == [0, 5_000_000_000]


def test_two_columns_that_differ_are_not_chosen_between(tmp_path: Path) -> None:
    path = put(tmp_path, "time,prompt_tokens,input_tokens,output_tokens\n1,2,3,4\n")
    with pytest.raises(
        UserError, match="'prompt_tokens' or 'input_tokens' could be the prompt: choose with --columns prompt="
    ):
        load_trace(path)
    assert load_trace(path, columns="prompt=input_tokens").prompt_len.tolist() == [3]


def test_turns_of_a_session_wait_for_the_answer_and_hold_what_came_before(tmp_path: Path) -> None:
    rows = [(0.0, "a", 100, 20, 2.0), (5.0, "a", 150, 10, 1.0), (6.5, "b", 30, 5, 1.0)]
    trace = load_trace(put(tmp_path, csv("start_time_s,session_id,prompt_tokens,output_tokens,duration_s", rows)))
    assert trace.labels["session"] == ("a", "a", "b")
    assert trace.after is not None
    assert trace.after.edges(1) == [(0, COMPLETION, 3_000_000_000, 0)]
    assert trace.content is not None
    assert trace.content.runs(1) == [(0, 100), (-1, 20), (1, 30)]
    recorded = load_trace(tmp_path / "log", timing="open")
    assert recorded.after is None
    assert recorded.arrival_ns.tolist() == [0, 5_000_000_000, 6_500_000_000]


def test_users_are_conversations_only_where_prompts_grow_by_what_came_before(tmp_path: Path) -> None:
    header = "time_s,user_id,prompt_tokens,output_tokens"
    alike = [(i, i % 3, 100, 20) for i in range(60)]
    trace = load_trace(put(tmp_path, csv(header, alike)))
    assert trace.content is None
    assert trace.labels["tenant"][:4] == ("0", "1", "2", "0")
    growing = [(i, i % 3, 100 + 50 * (i // 3), 20) for i in range(60)]
    chats = load_trace(put(tmp_path, csv(header, growing)))
    assert chats.content is not None
    assert chats.labels["session"][:4] == ("0", "1", "2", "0")


def test_a_total_that_is_not_the_sum_is_remarked_on(tmp_path: Path) -> None:
    rows = [(1, 10, 5, 15), (2, 10, 5, 19)]
    trace = load_trace(put(tmp_path, csv("time,prompt_tokens,output_tokens,total_tokens", rows)))
    assert "'total_tokens' is not the sum of prompt and output tokens in 1 of 2 rows" in trace.notes


def test_columns_next_to_servesims_own_are_kept_aside(tmp_path: Path) -> None:
    trace = load_trace(put(tmp_path, "arrival_ns,prompt_len,output_len,regin,priorty\n0,1,1,x,0\n"))
    assert 'extra columns not used: regin, priorty (did you mean "priority"?)' in trace.notes


@given(st.integers(0, 4_000_000_000), st.integers(0, 999_999_999), st.integers(-14 * 60, 14 * 60))
def test_iso_times_are_exact_to_the_nanosecond_in_any_zone(seconds: int, ns: int, minutes: int) -> None:
    local = np.datetime64(seconds + minutes * 60 + 60 * 86_400, "s")
    sign, size = ("-" if minutes < 0 else "+"), abs(minutes)
    text = f"{local}.{ns:09d}{sign}{size // 60:02d}:{size % 60:02d}"
    assert iso_ns(text) == (seconds + 60 * 86_400) * 1_000_000_000 + ns


@pytest.mark.parametrize("text", ["2026-13-01T00:00:00Z", "2026-02-30 00:00:00", "14:00:01", "1/2/2026 1:00 PM", ""])
def test_what_is_no_iso_time_is_none(text: str) -> None:
    assert iso_ns(text) is None


def test_names_state_units() -> None:
    names = {"latency_ms": "ms", "Time (us)": "us", "startTimeUnixNano": "ns", "duration_seconds": "s", "time": None}
    assert {name: unit_of(name) for name in names} == names


def test_columns_that_count_something_else_are_not_taken() -> None:
    names = [
        "timestamp",
        "cached_prompt_tokens",
        "prompt_tokens",
        "reasoning_tokens",
        "max_output_tokens",
        "output_tokens",
    ]
    found = roles(
        [*names, "prompt_cost_usd", "prompt", "time_to_first_token", "request_id"],
        Columns.of(None),
        lambda a, b: False,
        lambda name: 1,
    )
    assert found == {
        "arrival": "timestamp",
        "prompt": "prompt_tokens",
        "output": "output_tokens",
        "ttft": "time_to_first_token",
        "id": "request_id",
    }


def test_standard_input_is_a_log_too(monkeypatch: pytest.MonkeyPatch) -> None:
    piped = io.TextIOWrapper(io.BytesIO(csv("timestamp;prompt_tokens;completion_tokens", separator=";").encode()))
    monkeypatch.setattr("sys.stdin", piped)
    spooled.cache_clear()
    assert is_rows(open_trace("-"))
    assert open_trace("-", requests=2).name == "stdin"
    spooled.cache_clear()


def test_columns_reach_a_run_through_its_scenario(tmp_path: Path) -> None:
    path = put(tmp_path, csv("a,b,c"))
    scenario = Scenario.of(
        {"trace": str(path), "model": "llama-3.1-8b", "gpu": "h100", "columns": "arrival=a,prompt=b,output=c"}
    )
    assert is_rows(open_scenario(scenario))


START = 1763647201


def nginx(**more: Any) -> str:
    rows = [
        {
            "request_time": f"{2 + (5 * i) % 7:.3f}",
            "prompt_tokens": 100 + i,
            "completion_tokens": 5,
            "t": 1763647201 + 2 * i,
        }
        for i in range(9)
    ]
    for row in rows:
        at = row.pop("t")
        row |= {name: form(at) for name, form in more.items()}
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_a_duration_is_no_time_of_arrival(tmp_path: Path) -> None:
    iso, epoch = lambda t: f"2025-11-20T14:00:{t - 1763647201:02d}+00:00", lambda t: f"{t}.000"
    for clocks in ({"time_iso8601": iso}, {"msec": epoch}, {"msec": epoch, "time_iso8601": iso}):
        trace = load_trace(put(tmp_path, nginx(**clocks)))
        assert np.diff(trace.arrival_ns).tolist() == [2_000_000_000] * 8
    with pytest.raises(UserError, match=r"no column for times of arrival"):
        load_trace(put(tmp_path, nginx()))


def test_prompt_tokens_that_a_cache_served_belong_to_the_prompt(tmp_path: Path) -> None:
    beside = {
        "input_tokens": 100,
        "cache_read_input_tokens": 250,
        "cache_creation_input_tokens": 50,
        "output_tokens": 5,
    }
    bedrock = {"inputTokens": 100, "cacheReadInputTokens": 250, "cacheWriteInputTokens": 50, "outputTokens": 5}
    inside = {"prompt_tokens": 400, "prompt_tokens_details": {"cached_tokens": 250}, "completion_tokens": 5}
    nested = {"cache_creation": {"ephemeral_5m_input_tokens": 50}}
    for usage in (beside, bedrock, inside, beside | nested):
        rows = [{"timestamp": 1763647201 + i, "usage": usage} for i in range(3)]
        trace = load_trace(put(tmp_path, "".join(json.dumps(row) + "\n" for row in rows)))
        assert trace.prompt_len.tolist() == [400] * 3
        assert any("the server found 62.5% of prompt tokens in its cache" in note for note in trace.notes)
    for usage in ({"input_tokens": 100, "output_tokens": 5}, {**inside, "prompt_tokens_details": {"cached_tokens": 0}}):
        rows = [{"timestamp": 1763647201 + i, "usage": usage} for i in range(3)]
        notes = load_trace(put(tmp_path, "".join(json.dumps(row) + "\n" for row in rows))).notes
        assert not any("in its cache" in note for note in notes)


@pytest.mark.parametrize("name", ["num_model_requests", "requests", "request_count", "numCalls", "n_requests"])
def test_sums_of_several_requests_are_no_requests(tmp_path: Path, name: str) -> None:
    rows = [
        {"start_time": 1763647200 + 3600 * i, "input_tokens": 9000, "output_tokens": 90, name: 30} for i in range(3)
    ]
    with pytest.raises(
        UserError,
        match=rf"{name} is 30, so each row is the sum of several requests. The log must have one request per row.",
    ):
        load_trace(put(tmp_path, "".join(json.dumps(row) + "\n" for row in rows)))
    rows = [row | {name: 1} for row in rows]
    assert len(load_trace(put(tmp_path, "".join(json.dumps(row) + "\n" for row in rows)))) == 3


@pytest.mark.parametrize(("extra", "named"), [(6, "c0, c1, c2, c3, c4, c5"), (8, "c0, c1, c2, c3, c4, c5 and 2 more")])
def test_up_to_six_columns_that_are_not_used_are_named(tmp_path: Path, extra: int, named: str) -> None:
    names = ",".join(f"c{i}" for i in range(extra))
    rows = [(*row, *"x" * extra) for row in ROWS]
    notes = load_trace(put(tmp_path, csv(f"ts,prompt_tokens,completion_tokens,{names}", rows))).notes
    assert f"extra columns not used: {named}" in notes


def test_tokens_of_a_cache_are_added_unless_more_rows_say_that_the_prompt_includes_them(tmp_path: Path) -> None:
    """A row whose total is the sum without them includes them; one whose total has them on top does not."""
    inside, beside = (10, 5, 1, 15), (10, 5, 1, 16)
    for rows, lengths in (([inside, beside], [11, 11]), ([inside, inside, beside], [10, 10, 10])):
        lines = [
            {"timestamp": 1763647201 + i, "input_tokens": prompt, "cache_read_input_tokens": cached,
             "output_tokens": output, "total_tokens": total}
            for i, (prompt, output, cached, total) in enumerate(rows)
        ]  # fmt: skip
        trace = load_trace(put(tmp_path, "".join(json.dumps(line) + "\n" for line in lines)))
        assert trace.prompt_len.tolist() == lengths
