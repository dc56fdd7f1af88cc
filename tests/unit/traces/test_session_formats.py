"""Formats of conversations and agents: who waits for whom, how long, and what prompts contain."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from servesim.errors import UserError
from servesim.traces import load_trace, save_trace, trace_digest
from servesim.traces.formats import detect_format
from servesim.workload.trace import COMPLETION, DISPATCH, Trace

S, MS = 1_000_000_000, 1_000_000
SEQUENCE, SPAWN, JOIN = 0, 1, 2


def put(folder: Path, *rows: Any, name: str = "trace") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def edges(trace: Trace) -> list[list[tuple[int, int, int, int]]]:
    return [trace.after.edges(row) if trace.after is not None else [] for row in range(len(trace))]


def runs(trace: Trace) -> list[list[tuple[int, int]]]:
    assert trace.content is not None
    return [trace.content.runs(row) for row in range(len(trace))]


def call(t: float, prompt: int, output: int, ids: list[int], **more: Any) -> dict[str, Any]:
    return {"t": t, "type": "s", "model": "m", "in": prompt, "out": output, "hash_ids": ids, "api_time": 2.0, **more}


# A main agent of three calls; before the second a sub-agent worked from 3.5 to 7.5 s (its entry is stamped 7.5).
WEKA = {
    "id": "w",
    "block_size": 64,
    "hash_id_scope": "local",
    "requests": [
        call(0.0, 130, 30, [1, 2]),
        {
            "type": "subagent", "t": 7.5, "agent_id": "a1", "duration_ms": 4000,
            "requests": [call(0.0, 64, 5, [9]), call(3.0, 128, 5, [9, 10], think_time=1.0)],
        },
        call(8.0, 200, 10, [1, 2, 3], think_time=6.0),
        call(12.0, 140, 0, [1, 2], think_time=2.0),
    ],
}  # fmt: skip


def test_weka_sessions_wait_for_answers_and_sub_agents(tmp_path: Path) -> None:
    trace = load_trace(put(tmp_path, WEKA))
    assert trace.labels["session"] == ("w", "w::a1", "w::a1", "w", "w")
    assert set(trace.labels["play"]) == {"w"}
    assert edges(trace) == [
        [],
        [(0, COMPLETION, 1_500 * MS, SPAWN)],  # 3.5 s, 1.5 s after the end of the first call
        [(1, COMPLETION, 1 * S, SEQUENCE)],
        [(0, COMPLETION, 0, SEQUENCE), (2, COMPLETION, 500 * MS, JOIN)],  # the pause was the sub-agent's work
        [(3, COMPLETION, 2 * S, SEQUENCE)],
    ]
    assert trace.arrival_ns.tolist() == [0] * 5
    assert trace.output_len.tolist() == [30, 5, 5, 10, 1]


def test_weka_prompts_share_blocks_and_go_on_with_outputs(tmp_path: Path) -> None:
    first, sub, again, second, third = runs(load_trace(put(tmp_path, WEKA)))
    assert (first[0][1], sub[0][1]) == (130, 64)
    assert second[:2] == [first[0], (-1, 30)], "the first to extend a whole prompt contains its output"
    assert again[:2] == [sub[0], (-2, 5)]
    assert third[0] == (first[0][0], 128), "two full blocks of the first prompt, and then its own"
    assert third[1][0] not in {first[0][0], second[2][0]}
    plain = runs(load_trace(put(tmp_path, WEKA), content="prompts"))
    assert plain[3][0] == (first[0][0], 128)


def test_weka_timing_by_the_clock(tmp_path: Path) -> None:
    original = load_trace(put(tmp_path, WEKA), timing="original")
    assert original.arrival_ns.tolist() == [0, 3_500 * MS, 6_500 * MS, 8 * S, 12 * S]
    assert {edge[2] for row in edges(original) for edge in row} == {0}
    assert load_trace(put(tmp_path, WEKA), timing="open").after is None


def test_weka_files_in_a_folder_packed_run_length_coded_or_spread_over_lines_are_the_same(tmp_path: Path) -> None:
    def coded(entry: dict[str, Any]) -> dict[str, Any]:
        if "requests" in entry:
            return {**entry, "requests": [coded(inner) for inner in entry["requests"]]}
        ids = entry["hash_ids"]
        return {**{k: v for k, v in entry.items() if k != "hash_ids"}, "h": [[ids[0], len(ids)]]}

    want = trace_digest(load_trace(put(tmp_path, WEKA, name="plain")))
    assert trace_digest(load_trace(put(tmp_path, coded(WEKA), name="coded"))) == want
    folder = tmp_path / "sessions"
    folder.mkdir()
    (folder / "trace_0001.json").write_text(json.dumps(WEKA, indent=2))
    assert trace_digest(load_trace(folder)) == want
    (tmp_path / "packed").write_bytes(gzip.compress((tmp_path / "plain").read_bytes()))
    assert trace_digest(load_trace(tmp_path / "packed")) == want
    twice = put(tmp_path, WEKA, {**WEKA, "id": "x", "dup_of": "w"}, name="twice")
    assert len(load_trace(twice)) == 10
    assert trace_digest(load_trace(twice, duplicates="drop")) == want
    both = load_trace(twice)
    assert both.content is not None
    assert not {i for i, _ in both.content.runs(0)} & {i for i, _ in both.content.runs(5)}, "ids are local"


BAILIAN = [
    {"chat_id": 7, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 20, "output_length": 4, "type": "text",
     "turn": 1, "hash_ids": [5, 6]},
    {"chat_id": 8, "parent_chat_id": 7, "timestamp": 9.25, "input_length": 33, "output_length": 2, "type": "text",
     "turn": 2, "hash_ids": [5, 9, 10]},
]  # fmt: skip


def test_bailian_turns_follow_their_parents_but_not_before_their_times(tmp_path: Path) -> None:
    trace = load_trace(put(tmp_path, *BAILIAN))
    assert trace.arrival_ns.tolist() == [S // 2, 9_250 * MS]
    assert edges(trace) == [[], [(0, COMPLETION, 0, SEQUENCE)]]
    assert runs(trace) == [[(0, 16), (1, 4)], [(0, 16), (2, 16), (3, 1)]]
    assert trace.labels["session"] == ("7", "7")


BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,GPT-4,472,18,490,Conversation log\n"
BURST += "45,ChatGPT,10,0,10,API log\n118,ChatGPT,1087,230,1317,API log\n"
BURST3 = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
BURST3 += "5.5,s1,2.25,GPT-4,472,18,490,Conversation log\n9,s1,1,GPT-4,500,18,518,Conversation log\n"
BURST3 += "9,,1,GPT-4,30,8,38,API log\n"


def test_burstgpt_with_either_header(tmp_path: Path) -> None:
    (tmp_path / "one").write_text(BURST)
    one = load_trace(tmp_path / "one")
    assert one.arrival_ns.tolist() == [5 * S, 118 * S]
    assert one.labels["class"] == ("Conversation log", "API log")
    assert "1 failed requests without response tokens left out" in one.notes
    (tmp_path / "three").write_text(BURST3)
    three = load_trace(tmp_path / "three")
    assert edges(three) == [[], [(0, COMPLETION, 1_250 * MS, SEQUENCE)], []]
    assert three.arrival_ns.tolist() == [5_500 * MS, 5_500 * MS, 9 * S]
    original = load_trace(tmp_path / "three", timing="original")
    assert original.arrival_ns.tolist() == [5_500 * MS, 9 * S, 9 * S]
    assert original.after is not None


def test_burstgpt_with_failed_requests_only_is_refused(tmp_path: Path) -> None:
    (tmp_path / "failed").write_text(BURST.replace(",18,", ",0,").replace(",230,", ",0,"))
    with pytest.raises(UserError, match="no requests other than failed requests without response tokens"):
        load_trace(tmp_path / "failed")


def event(name: str, session: str | None, start: int, spent: int, hashes: list[int], parent: str = "") -> Any:
    replay = {"trace_block_size": 4, "input_length": 4 * len(hashes), "input_sequence_hashes": hashes}
    request = {"request_id": name, "output_tokens": 2, "request_received_ms": start, "total_time_ms": spent}
    context = {"session_id": session, "parent_session_id": parent} if session else {}
    head = {"schema": "dynamo.request.trace.v1", "event_type": "request_end", "agent_context": context}
    return {**head, "request": {**request, "replay": replay}}


def test_dynamo_recordings_become_pauses_spawns_and_joins(tmp_path: Path) -> None:
    tool = {"claude": {"consumer_request_id": "p2", "child_session_id": "c", "execution_mode": "blocking"}}
    path = put(
        tmp_path,
        {"event_type": "request_payload", "request_id": "p1"},
        event("p1", "p", 100, 10, [1]),
        event("c1", "c", 120, 10, [2], "p"),
        event("p2", "p", 200, 10, [1, 3]),
        {"schema": "dynamo.request.trace.v1", "event_type": "tool_end", "tool": tool},
        event("p3", "p", 230, 10, [1, 3, 4]),
    )
    trace = load_trace(path)
    assert trace.request_id == ("p1", "c1", "p2", "p3")
    assert edges(trace) == [
        [],
        [(0, COMPLETION, 10 * MS, SPAWN)],
        [(0, COMPLETION, 0, SEQUENCE), (1, COMPLETION, 70 * MS, JOIN)],
        [(2, COMPLETION, 20 * MS, SEQUENCE)],
    ]
    assert runs(trace)[3][:2] == runs(trace)[2]
    assert load_trace(path, timing="original").arrival_ns.tolist() == [0, 20 * MS, 100 * MS, 130 * MS]


def test_mooncake_turns_with_delays_are_told_from_deltas_by_their_content(tmp_path: Path) -> None:
    def turn(n: int, tokens: int, ids: list[int], **more: Any) -> dict[str, Any]:
        return {"request_id": f"r{n}", "session_id": "s", "input_length": tokens, "output_length": 4, "hash_ids": ids,
                **more}  # fmt: skip

    whole = put(tmp_path, turn(1, 512, [1], timestamp=3), turn(2, 1030, [1, 2, 3], delay=5), name="whole")
    delta = put(tmp_path, turn(1, 512, [1], timestamp=3), turn(2, 518, [2, 3], delay=5), name="delta")
    assert (detect_format(whole), detect_format(delta)) == ("mooncake", "mooncake-delta")
    for path in (whole, delta):
        trace = load_trace(path)
        assert edges(trace) == [[], [(0, COMPLETION, 5 * MS, SEQUENCE)]]
        assert trace.arrival_ns.tolist() == [3 * MS, 3 * MS]
    assert load_trace(whole).prompt_len.tolist() == [512, 1030]
    assert load_trace(delta).prompt_len.tolist() == [512, 512 + 4 + 518]
    assert runs(load_trace(delta))[1] == [(0, 512), (-1, 4), (1, 512), (2, 6)]


def test_token_ids_share_exactly_what_they_have_in_common(tmp_path: Path) -> None:
    prompts = [[1, 2, 3, 4], [1, 2, 9], [1, 2, 3, 4, 50, 51, 7], [1, 2], [1, 2, 3, 4, 50, 8]]
    answers = [[50, 51], [1], [2], [3], [4]]
    rows = [
        {"input_toks": len(p), "output_toks": len(a), "arrival_time_ns": i, "input_tok_ids": p, "output_tok_ids": a}
        for i, (p, a) in enumerate(zip(prompts, answers, strict=True))
    ]
    trace = load_trace(put(tmp_path, *rows))
    got = runs(trace)
    expanded = [[(c, j) for c, length in row for j in range(length)] for row in got]
    for a, one in enumerate(prompts):
        for b, two in enumerate(prompts[:a]):
            common = next(i for i in range(9) if i in (len(one), len(two)) or one[i] != two[i])
            if {a, b} != {2, 4}:  # what is shared inside an answer that one of them does not contain as a whole is lost
                same = [x == y for x, y in zip(expanded[a], expanded[b], strict=False)]
                assert same[:common] == [True] * common
                assert not any(same[common:])
    assert got[2][-2:] == [(-1, 2), got[2][-1]], "the third prompt contains the first answer"


def test_sessions_of_sub_requests_wait_for_tools(tmp_path: Path) -> None:
    parts = [{"input_toks": 5, "output_toks": 2, "tool_duration_ns": 70}, {"input_toks": 9, "output_toks": 1}]
    trace = load_trace(put(tmp_path, {"session_id": "x", "arrival_time_ns": 40, "sub_requests": parts}))
    assert edges(trace) == [[], [(0, COMPLETION, 70, SEQUENCE)]]
    assert trace.arrival_ns.tolist() == [40, 40]


def test_lengths_alone_and_measured_runs_have_no_times(tmp_path: Path) -> None:
    (tmp_path / "lengths").write_text("num_prefill_tokens,num_decode_tokens,pd_ratio\n74,918,0.08\n290,905,0.3\n")
    assert load_trace(tmp_path / "lengths").arrival_ns.tolist() == [0, 0]
    totals = {"num_prompts": 3, "completed": 3, "max_concurrency": 2, "total_input_tokens": 100,
              "total_output_tokens": 11}  # fmt: skip
    mean = load_trace(put(tmp_path, totals, name="totals"))
    assert (mean.prompt_len.sum(), mean.output_len.sum(), np.ptp(mean.prompt_len)) == (100, 11, 1)
    assert any("max_concurrency=2" in note for note in mean.notes)
    detailed = {**totals, "max_concurrency": None, "input_lens": [4, 5, 6], "output_lens": [1, 0, 2],
                "start_times": [10.5, 10.0, 10.25]}  # fmt: skip
    trace = load_trace(put(tmp_path, detailed, name="detailed"))
    assert (trace.arrival_ns.tolist(), trace.prompt_len.tolist()) == ([0, S // 4], [6, 4])


BAD = [
    ([{**WEKA, "requests": [call(0, 130, 3, [1])]}], "line 1: 1 hashes for 130 tokens instead of 2 (full blocks of 64"),
    ([WEKA, {**WEKA, "requests": [{"t": 1}]}], "line 2: in is None but must be a whole number"),
    ([WEKA, {**WEKA, "block_size": 0}], "line 2: block_size is 0"),
    ([BAILIAN[0], {**BAILIAN[1], "hash_ids": [5]}], "line 2: 1 hashes for 33 tokens instead of 3"),
    ([BAILIAN[0], {**BAILIAN[1], "timestamp": "soon"}], "line 2: timestamp is 'soon'"),
    (
        [event("a", "s", 0, 1, [1]), {**event("b", "s", 5, 1, [1]), "request": 3}],
        "line 2: there is no 'request' object",
    ),
]


@pytest.mark.parametrize(("rows", "message"), BAD)
def test_malformed_sessions_name_file_and_line(tmp_path: Path, rows: list[Any], message: str) -> None:
    path = put(tmp_path, *rows)
    with pytest.raises(UserError) as error:
        load_trace(path)
    assert str(error.value).startswith(str(path))
    assert message in str(error.value)


def agentic(**change: Any) -> list[dict[str, Any]]:
    head = {"schema": "dynamo.agentic_mooncake", "version": 2, "block_size": 4, "hash_id_scope": "local"}
    row = {"request_id": "a", "play_id": "p", "session_id": "s", "model": "m", "input_length": 6, "output_length": 2,
           "hash_ids": [3, 4], "not_before_ms": 1.5, "priority": 2, "policy_class": "gold"}  # fmt: skip
    wait = {"request_id": "a", "trigger": "dispatch", "delay_ms": 0.25, "relation": "spawn"}
    later = {**row, "request_id": "b", "hash_ids": [3, 5], "not_before_ms": 0, "dependencies": [{**wait, **change}]}
    return [head, row, later, {**row, "request_id": "c", "play_id": "q", "not_before_ms": 2}]


def test_agentic_mooncake_keeps_dependencies_scopes_and_classes(tmp_path: Path) -> None:
    trace = load_trace(put(tmp_path, *agentic()))
    assert trace.request_id == ("b", "a", "c")  # by time
    assert edges(trace) == [[(1, DISPATCH, MS // 4, SPAWN)], [], []]
    assert runs(trace)[0][0] == runs(trace)[1][0]
    assert not set(runs(trace)[2]) & set(runs(trace)[1]), "ids of another play are others"
    assert trace.labels["class"] == ("gold",) * 3
    save_trace(trace, tmp_path / "again", "agentic-mooncake")
    assert trace_digest(load_trace(tmp_path / "again")) == trace_digest(trace)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"request_id": "z"}, "line 3: depends on 'z', which is not in the file"),
        ({"trigger": "start"}, "the trigger of a dependency is 'start' but must be one of dispatch, completion"),
        ({"delay_ms": -1}, "line 3: delay_ms is -1"),
        ({"request_id": "b"}, "waits for itself in a cycle"),
    ],
)
def test_wrong_dependencies_are_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        load_trace(put(tmp_path, *agentic(**change)))
    assert message in str(error.value)


def test_outputs_inside_prompts_are_not_lost_unnoticed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="outputs"):
        save_trace(load_trace(put(tmp_path, WEKA)), tmp_path / "out", "agentic-mooncake")


def test_a_damaged_archive_is_told_from_a_short_one(tmp_path: Path) -> None:
    packed = gzip.compress(("".join(json.dumps(row) + "\n" for row in BAILIAN * 2000)).encode(), mtime=0)
    (tmp_path / "cut").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(UserError, match="damaged or cut short"):
        load_trace(tmp_path / "cut")


def test_tokens_of_several_choices_are_shared_out_among_them(tmp_path: Path) -> None:
    usage = {"gen_ai.usage.input_tokens": 10, "gen_ai.usage.output_tokens": 11}
    times = {"start_time": "2025-01-01T00:00:00", "end_time": "2025-01-01T00:00:09"}
    spans = [
        {"span_id": "a", "trace_id": "x", **times, "attributes": {**usage, "gen_ai.request.choice.count": 3}},
        {"span_id": "b", "trace_id": "y", **times, "attributes": usage},
    ]
    path = tmp_path / "spans.json"
    path.write_text(json.dumps({"spans": spans}))
    trace = load_trace(path)
    assert trace.samples is not None
    assert [[int(trace.output_len[row]), *trace.samples.lengths(row)] for row in (0, 1)] == [[4, 4, 3], [11]]
    spans[1]["attributes"] = {**usage, "gen_ai.request.choice.count": 12}
    path.write_text(json.dumps({"spans": spans}))
    with pytest.raises(UserError, match="is 12 but must be from 1 to the"):
        load_trace(path)


@pytest.mark.parametrize(("priority", "kept"), [({"priority": 2}, 2), ({"priority": None}, 0), ({}, 0)])
def test_a_call_without_a_priority_has_priority_0(tmp_path: Path, priority: dict[str, int | None], kept: int) -> None:
    head, row, *_ = agentic()
    plain = {key: value for key, value in row.items() if key != "priority"}
    assert load_trace(put(tmp_path, head, plain | priority)).priority.tolist() == [kept]
