"""Whatever a trace holds comes back from the formats that can hold it; prefix counts agree with plain tokens."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from servesim.traces import load_trace, save_trace, trace_digest
from servesim.traces.prefix import block_hits, block_ids, shared_prefix_tokens
from servesim.workload.trace import After, Content, Samples, Trace
from tests.support.examples import examples

RUNS = st.lists(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=4), min_size=1, max_size=8
)


def content_of(rows: list[list[tuple[int, int]]]) -> Content:
    offsets = np.concatenate(([0], np.cumsum([len(row) for row in rows]))).astype(np.int64)
    flat = np.array([run for row in rows for run in row], dtype=np.int64)
    return Content(offsets, np.ascontiguousarray(flat[:, 0]), np.ascontiguousarray(flat[:, 1]))


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    rows = draw(RUNS)
    n = len(rows)

    def ints(low: int, high: int) -> np.ndarray:  # type: ignore[type-arg]
        return np.array(draw(st.lists(st.integers(low, high), min_size=n, max_size=n)), dtype=np.int64)

    output, slack = ints(1, 2000), ints(0, 3)
    further = draw(st.lists(st.lists(st.floats(0, 1), max_size=2), min_size=n, max_size=n))  # shares of the cap
    sampled = [max(round(u * cap), 1) for row, cap in zip(further, (output + slack).tolist(), strict=True) for u in row]
    text = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\x00"), max_size=5)
    ids = draw(st.none() | st.lists(text, min_size=n, max_size=n).map(tuple))
    waits = [[] for _ in range(n)]
    for row in range(1, n):
        edge = st.tuples(st.integers(0, row - 1), st.integers(0, 1), st.integers(0, 10**12), st.integers(0, 3))
        waits[row] = draw(st.lists(edge, max_size=2))
    labels = draw(st.sets(st.sampled_from(["session", "play", "tenant", "class", "model"])))
    words = st.lists(st.sampled_from(["", "a", "b é"]), min_size=n, max_size=n).map(tuple)
    return Trace(
        name=draw(st.sampled_from(["a", "trace ü"])),
        arrival_ns=np.cumsum(ints(0, 10**15)),
        prompt_len=np.array([sum(length for _, length in row) for row in rows], dtype=np.int64),
        output_len=output,
        max_tokens=output + slack,
        stop=slack > 0,
        priority=ints(-5, 5),
        request_id=ids,
        content=draw(st.none() | st.just(content_of(rows))),
        after=After.of(waits) if draw(st.booleans()) else None,
        cancel_ns=draw(st.none() | st.just(ints(-1, 10**12))),
        samples=Samples.of(np.array([len(row) for row in further]), np.array(sampled, dtype=np.int64)),
        labels={name: draw(words) for name in sorted(labels)},
        notes=draw(st.sampled_from([(), ("scaled", "sorted")])),
    )


@examples(60)
@given(traces(), st.sampled_from(["parquet", "jsonl", "csv"]))
def test_native_formats_lose_nothing(trace: Trace, form: str) -> None:
    if form == "csv":
        trace = replace(trace, content=None)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t"
        save_trace(trace, path, form)
        back = load_trace(path)
    assert trace_digest(back) == trace_digest(trace)
    assert back.request_id == trace.request_id
    if form != "csv":
        assert (back.name, back.notes) == (trace.name, trace.notes)


@examples(60)
@given(traces())
def test_agentic_mooncake_loses_nothing_it_says_it_holds(trace: Trace) -> None:
    n = len(trace)
    names = tuple(f"r{row}" for row in range(n))
    always = {"session": ("s",) * n, "play": ("p",) * n, "model": ("m",) * n}
    labels = {**always, **{k: v for k, v in trace.labels.items() if k in ("class", "model")}}
    labels = {k: v for k, v in labels.items() if any(v)}
    held = replace(
        trace,
        request_id=names,
        max_tokens=trace.output_len,
        stop=np.zeros(n, dtype=np.bool_),
        cancel_ns=None,
        samples=None,
        labels=labels,
        prompt_len=trace.prompt_len * 8,
        content=None if trace.content is None else replace(trace.content, lengths=trace.content.lengths * 8),
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t"
        save_trace(held, path, "agentic-mooncake")
        back = load_trace(path)
        save_trace(back, Path(folder) / "again", "agentic-mooncake")
        again = load_trace(Path(folder) / "again")
    assert trace_digest(again) == trace_digest(back)
    assert trace_digest(replace(back, content=None)) == trace_digest(replace(held, content=None))
    if held.content is not None:
        assert back.content is not None
        full = held.prompt_len // 16  # engines share full blocks
        hits = [np.minimum(block_hits(t, held.prompt_len, 16)[1], full).tolist() for t in (held.content, back.content)]
        assert hits[0] == hits[1]


def tokens_of(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(content, position) for content, length in runs for position in range(length)]


@examples(150)
@given(RUNS, st.integers(1, 6))
def test_shared_prefixes_agree_with_plain_tokens(rows: list[list[tuple[int, int]]], block: int) -> None:
    content = content_of(rows)
    prompts = [tokens_of(row) for row in rows]
    shared = shared_prefix_tokens(content)
    for row, prompt in enumerate(prompts):
        want = max(
            (sum(1 for j in range(len(prompt)) if prompt[: j + 1] == other[: j + 1]) for other in prompts[:row]),
            default=0,
        )
        assert shared[row] == want
    blocks, hits, tokens = block_hits(content, np.array([len(p) for p in prompts]), block)
    assert np.all(hits <= blocks)
    assert np.all(tokens <= shared)


@examples(100)
@given(RUNS, st.integers(1, 6))
def test_block_ids_are_equal_exactly_where_prefixes_are(rows: list[list[tuple[int, int]]], block: int) -> None:
    ids = block_ids(content_of(rows), block)
    prompts = [tokens_of(row) for row in rows]
    for a, one in enumerate(prompts):
        assert len(ids[a]) == -(-len(one) // block)
        for b, two in enumerate(prompts[:a]):
            for k in range(1, min(len(ids[a]), len(ids[b])) + 1):
                assert (ids[a][:k] == ids[b][:k]) == (one[: k * block] == two[: k * block])
