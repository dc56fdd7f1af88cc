"""What if: a burst, growth, a prefix in common, on any trace; and what a run says of the burst."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import servesim
from servesim.errors import UserError
from servesim.features.bursts.burst import burst, burst_text
from servesim.traces import shape, synthesize
from servesim.workload.trace import COMPLETION, Trace
from tests.support.examples import examples
from tests.support.worlds import toy_trace

S = 1_000_000_000


def conversations() -> Trace:
    """Two turns from 0 s on, a request at 10 s, two turns from 20 s on, a request at 40 s."""
    return toy_trace(
        [0, 0, 10 * S, 20 * S, 20 * S, 40 * S],
        [4, 9, 4, 4, 9, 4],
        [3] * 6,
        names=tuple("abcdef"),
        after={1: [(0, COMPLETION, 5 * S)], 4: [(3, COMPLETION, S // 2)]},
        labels={"session": ("x", "x", "", "y", "y", "")},
        runs=[[(i, 4)] if i not in (1, 4) else [(i - 1, 4), (-i, 3), (50 + i, 2)] for i in range(6)],
    )


def counted(trace: Trace, start: float, end: float) -> int:
    return int(((trace.arrival_ns >= start * S) & (trace.arrival_ns < end * S)).sum())


def test_a_burst_has_so_many_times_the_requests_and_leaves_the_rest() -> None:
    plain = synthesize("arrivals=poisson,rate=10", 1000)
    got = shape(plain, ["burst:at=20,for=30,times=5"], seed=3)
    assert counted(got, 20, 50) == 5 * counted(plain, 20, 50)
    outside = got.arrival_ns[(got.arrival_ns < 20 * S) | (got.arrival_ns >= 50 * S)]
    assert outside.tolist() == plain.arrival_ns[(plain.arrival_ns < 20 * S) | (plain.arrival_ns >= 50 * S)].tolist()
    inside = got.arrival_ns[(got.arrival_ns >= 20 * S) & (got.arrival_ns < 50 * S)]
    assert len(set(inside.tolist())) == len(inside)  # copies do not come together
    halves = [counted(got, 20, 35), counted(got, 35, 50)]
    assert max(halves) < 0.6 * sum(halves)


def test_a_part_of_a_time_is_a_share_of_the_plays() -> None:
    plain = synthesize("arrivals=constant,rate=10", 4000)
    for times in (0.25, 2.5):
        got = shape(plain, [f"burst:at=0,for=400,times={times}"])
        assert len(got) == pytest.approx(times * 4000, rel=0.05)
    assert counted(shape(plain, ["burst:at=100,for=100,times=0"]), 100, 200) == 0


def test_conversations_stay_whole_in_a_burst() -> None:
    got = shape(conversations(), ["burst:at=15,for=10,times=3"])
    assert len(got) == 6 + 2 * 2
    assert got.labels["session"].count("y") == 2
    assert sorted(set(got.labels["session"])) == ["", "x", "y", "y@2", "y@3"]
    assert got.after is not None
    turns = [row for row in range(len(got)) if got.labels["session"][row].startswith("y") and got.after.edges(row)]
    assert [got.after.edges(row)[0][1:] for row in turns] == [(COMPLETION, S // 2, 0)] * 3


def test_copies_have_texts_of_their_own_unless_they_share() -> None:
    fresh = shape(conversations(), ["burst:at=5,for=10,times=2"])
    shared = shape(conversations(), ["burst:at=5,for=10,times=2,content=shared"])
    both = [fresh.content, shared.content]
    rows = [row for row in range(7) if (fresh.request_id or ())[row].startswith("c")]
    texts = [{content.runs(row)[0][0] for row in rows} for content in both if content is not None]
    assert [len(ids) for ids in texts] == [2, 1]


def test_growth_rises_linearly() -> None:
    plain = synthesize("arrivals=constant,rate=10", 6000)
    got = shape(plain, ["growth:times=3"])
    assert len(got) == pytest.approx(2 * 6000, rel=0.02)  # the mean of 1 and 3
    tenths = np.histogram(got.arrival_ns / S, 10, (0, 600))[0] / 600
    assert tenths == pytest.approx(1.1 + 0.2 * np.arange(10), rel=0.08)
    falling = shape(plain, ["growth:start=1,times=0"])
    assert len(falling) == pytest.approx(3000, rel=0.05)


def test_prompts_share_a_prefix_and_keep_their_lengths() -> None:
    plain = synthesize("prompt=lognormal(800,2000)", 500)
    got = shape(plain, ["share:tokens=1200,groups=3"])
    assert got.prompt_len.tolist() == plain.prompt_len.tolist()
    assert got.content is not None
    heads = [got.content.runs(row)[0] for row in range(500)]
    assert len({head for head, _ in heads}) == 3
    assert [length for _, length in heads] == np.minimum(plain.prompt_len, 1200).tolist()
    rest = [run for row in range(500) for run in got.content.runs(row)[1:]]
    assert len({text for text, _ in rest}) == len(rest)  # nothing else is the same


def test_a_share_of_the_plays_shares() -> None:
    got = shape(synthesize("prompt=100", 2000), ["share:tokens=10,share=0.25"])
    assert got.content is not None
    assert sum(len(got.content.runs(row)) == 2 for row in range(2000)) == pytest.approx(500, rel=0.15)


def test_turns_still_repeat_what_was_said_behind_a_shared_prefix() -> None:
    got = shape(conversations(), ["share:tokens=2,groups=1"])
    assert got.content is not None
    common = got.content.runs(0)[0]
    assert common[1] == 2
    assert got.content.runs(0) == [common, (0, 2)]
    assert got.content.runs(1) == [common, (0, 2), (-1, 3), (51, 2)]
    assert shape(conversations(), ["share:tokens=5,groups=1"]).content.runs(1)[1:] == [(-1, 2), (51, 2)]  # type: ignore[union-attr]


@given(st.integers(1, 12), st.integers(1, 4), st.integers(0, 9))
@examples(50)
def test_runs_of_a_shared_prefix_add_up_to_the_prompts(tokens: int, groups: int, seed: int) -> None:
    got = shape(conversations(), [f"share:tokens={tokens},groups={groups}"], seed)
    assert got.content is not None
    sums = [sum(length for _, length in got.content.runs(row)) for row in range(len(got))]
    assert sums == got.prompt_len.tolist()


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("burst:at=600,for=300,times=5", "no request arrives in the 300 s that begin at 600 s"),
        ("burst:at=-1,for=3,times=5", "must be at least 0"),
        ("burst:at=0,for=0,times=5", "must be above 0"),
        ("burst:at=0,for=9,times=5000", "times is 5000 but must be from 0 to 1000"),
        ("burst:at=0,times=5", "missing|required"),
        ("growth:times=-1", "times is -1"),
        ("growth:times=0,start=0", "no requests are left"),
        ("share:tokens=0", "both must be at least 1"),
        ("share:tokens=5,share=2", "must be from 0 to 1"),
        ("share:token=5", "did you mean"),
    ],
)
def test_what_cannot_be_is_refused(step: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        shape(conversations(), [step])


def table(*requests: tuple[float, float]) -> dict[str, Any]:
    """Requests by when they come and when they are scheduled, s."""
    come, begin = (np.array([round(x * S) for x in column]) for column in zip(*requests, strict=True))
    rows = np.arange(len(requests))
    return {"row": rows, "arrival_ns": come, "scheduled_ns": begin, "finished_ns": begin + S}


def test_the_figures_of_a_burst_by_hand() -> None:
    # One waits 1 s before the burst from 10 to 12 s; of the four in it three wait at once, the last one is scheduled at
    # 20 s, when request 5 waits alone, as long as none before it did.
    found = burst(table((0, 1), (10, 10), (10.5, 14), (11, 16), (11.5, 20), (19, 20.5)), 10, 2, 4)
    assert found == {
        "at_s": 10,
        "for_s": 2,
        "times": 4,
        "requests": 4,
        "most_waiting": 3,
        "most_waiting_before": 1,
        "recovery_s": 4.0 + 0.0,  # at 16 s one waits: no more than before
        "waited": 3,
        "rows": [2, 4],
        "longest_wait_ms": 8500.0,
        "longest_wait_before_ms": 1000.0,
    }
    assert burst_text(found) == (
        "burst at 10 s, 2 s long: 4 requests arrived and up to 3 waited at once (1 before the burst); the queue "
        "recovered 4.0 s after the burst ended; 3 requests (rows 2 to 4) waited longer than any earlier "
        "request, up to 8.50 s"
    )


def test_a_burst_that_a_server_takes_in_its_stride() -> None:
    found = burst(table((0, 0), (10, 10), (11, 11), (20, 20)), 10, 5, 2)
    assert (found["recovery_s"], found["waited"], found["rows"]) == (0.0, 0, None)
    assert burst_text(found).endswith("2 requests arrived, and none of them waited longer than earlier requests")


@pytest.mark.feature("bursts")
def test_a_run_says_what_became_of_its_burst() -> None:
    run: dict[str, Any] = {
        "trace": "synth:arrivals=poisson,rate=5,prompt=300,output=20",
        "model": "llama-3.2-1b",
        "gpu": "h200",
        "scheduler": "vllm:max_num_seqs=2",
        "shape": ["burst:at=3,for=2,times=20"],
    }
    result = servesim.simulate(run, requests=300)
    [found] = result.summary["bursts"]
    frame = result.requests
    waited = frame[frame["queue_time_ns"] > frame[frame["arrival_ns"] < 3 * S]["queue_time_ns"].max()]
    waited = waited[waited["arrival_ns"] <= (5 + found["recovery_s"]) * S]
    assert found["waited"] == len(waited) > 50
    assert found["rows"] == [waited["row"].min(), waited["row"].max()]
    assert found["recovery_s"] > 0.5
    assert any(note.startswith("burst at 3 s, 2 s long: ") for note in result.summary["notes"])
    moved = servesim.simulate(run, requests=100, rate=5).summary
    assert "bursts" not in moved
    assert any("rate moves requests in time" in note for note in moved["warnings"])
