"""Shaping: each step does what it says, keeps plays whole, and says so in the result."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servesim.errors import UserError
from servesim.run.simulate import simulate
from servesim.traces import save_trace, shape, synthesize
from servesim.traces.shape import STEPS
from servesim.workload.trace import COMPLETION, Trace
from tests.support.examples import examples
from tests.support.worlds import toy_trace

S = 1_000_000_000


def trace() -> Trace:
    """Two conversations of two turns, and four requests that stand alone."""
    return toy_trace(
        [0, 0, 10 * S, 20 * S, 20 * S, 30 * S, 40 * S, 50 * S],
        [4, 9, 4, 4, 9, 4, 4, 4],
        [3] * 8,
        names=tuple("abcdefgh"),
        after={1: [(0, COMPLETION, 100 * S)], 4: [(3, COMPLETION, S // 2)]},
        labels={"session": ("x", "x", "", "y", "y", "", "", "")},
        runs=[[(i, 4)] if i not in (1, 4) else [(i - 1, 4), (-i, 3), (50 + i, 2)] for i in range(8)],
    )


def starts(shaped: Trace) -> list[float]:
    return (shaped.arrival_ns / S).tolist()


def test_a_window_counts_from_its_start_and_drops_the_rest() -> None:
    got = shape(trace(), ["window:start=10,end=30"])
    assert starts(got) == [0, 10, 10]
    assert got.request_id == ("c", "d", "e")
    assert got.after is not None
    assert got.after.edges(2) == [(1, COMPLETION, S // 2, 0)]
    assert got.content is not None
    assert got.content.runs(2) == [(3, 4), (-2, 3), (54, 2)]
    assert got.notes[-1] == "shape window:start=10,end=30 (3 requests of 8)"


def test_requests_of_one_model_are_kept_with_their_plays() -> None:
    names = ("a", "b", "a", "", "b", "a")
    labelled = replace(toy_trace([0, 1, 2, 3, 4, 5], [8] * 6, [1] * 6), labels={"model": names})
    assert shape(labelled, ["where:model=a"], 0).arrival_ns.tolist() == [0, 2, 5]
    whole = trace()
    apart = shape(replace(whole, labels={"model": ("a", *["b"] * (len(whole) - 1))}), ["where:model=a"], 0)
    assert len(apart) == int((whole.plays() == whole.plays()[0]).sum())  # later turns go with the first
    with pytest.raises(UserError, match="no request has model 'c'"):
        shape(labelled, ["where:model=c"], 0)
    with pytest.raises(UserError, match="specify the label to keep"):
        shape(labelled, ["where"], 0)


def test_stretch_ramp_and_shuffle_move_requests() -> None:
    assert starts(shape(trace(), ["stretch:factor=0.5"])) == [0, 0, 5, 10, 10, 15, 20, 25]
    assert starts(shape(trace(), ["ramp:start=2,end=2"])) == [0, 0, 5, 10, 10, 15, 20, 25]
    ramped = np.array(starts(shape(synthesize("arrivals=constant,rate=10", 3000), ["ramp:start=1,end=3"])))
    rates = [np.sum(ramped < 20) / 20, np.sum(ramped > ramped[-1] - 5) / 5]
    # New time is 299.9 ln(1 + 2x) / 2 at share x of the old: x(20 s) = 0.0713, x(5 s before the end) = 0.9508.
    assert rates == pytest.approx([3000 * 0.0713 / 20, 3000 * 0.0492 / 5], rel=0.01)
    assert ramped[-1] == pytest.approx(299.9 * np.log(3) / 2)
    moved = shape(trace(), ["shuffle"], seed=4)
    assert sorted(starts(moved)) != starts(moved) or moved.request_id != trace().request_id
    assert set(starts(moved)) <= {0, 10, 20, 30, 40, 50}


def test_pauses_are_scaled_and_capped() -> None:
    got = shape(trace(), ["think:scale=0.9,cap=60"])
    assert got.after is not None
    assert got.after.delays_ns.tolist() == [60 * S, int(0.45 * S)]
    with pytest.raises(UserError, match="no pauses"):
        shape(toy_trace([0], [1], [1]), ["think:cap=1"])


def test_arrivals_are_drawn_again_for_whole_plays() -> None:
    got = shape(trace(), ["arrive:process=gamma(cv=2),rate=4"], seed=1)
    play, first = got.plays(), {}
    for row, number in enumerate(play.tolist()):
        assert starts(got)[row] == starts(got)[first.setdefault(number, row)]
    flat = shape(synthesize("prompt=5", 2000), ["arrive:rate=4"])
    assert starts(flat)[-1] == pytest.approx(500, rel=0.1)


def test_repeated_days_have_texts_of_their_own_or_the_same() -> None:
    fresh = shape(trace(), ["repeat:times=2,period=100"])
    assert starts(fresh)[8:] == [100 + s for s in starts(trace())]
    assert fresh.request_id is not None
    assert (fresh.request_id[0], fresh.request_id[8]) == ("a@1", "a@2")
    assert fresh.content is not None
    assert fresh.content.runs(9)[0] == fresh.content.runs(8)[0] != fresh.content.runs(0)[0]
    assert fresh.content.runs(9)[1] == (-9, 3), "the output of the second day's own first turn"
    shared = shape(trace(), ["repeat:times=2,content=shared"])
    assert shared.content is not None
    assert shared.content.runs(8) == shared.content.runs(0)
    assert shared.after is not None
    assert shared.after.edges(9) == [(8, COMPLETION, 100 * S, 0)]


def test_a_mix_has_the_stated_share_of_the_other_trace(tmp_path: Path) -> None:
    base = synthesize("rate=10,prompt=100", 4000)
    other = "synth:rate=3,prompt=900,output=7"
    got = shape(base, [f"mix:weight=0.2,trace={other}"])
    theirs = got.prompt_len == 900
    assert theirs.mean() == pytest.approx(0.2, abs=0.015)
    assert len(got) - theirs.sum() == 4000
    assert set(got.labels["tenant"]) == {base.name, other}
    save_trace(trace(), tmp_path / "t.jsonl", "jsonl")
    mixed = shape(base, [f"mix:weight=0.001,trace={tmp_path / 't.jsonl'}"])
    assert mixed.content is not None
    assert mixed.after is not None


def test_labels_caps_and_cancellations_are_given_to_the_stated_share() -> None:
    base = synthesize("rate=10,output=50", 4000)
    label = "label:share=0.25,slo_class=gold,tenant=t,priority=-1"
    got = shape(base, [label, "cap:tokens=128", "cancel:share=0.1,after=2"])
    gold = np.array(got.labels["class"]) == "gold"
    assert gold.mean() == pytest.approx(0.25, abs=0.02)
    assert ((got.priority == -1) == gold).all()
    assert (got.max_tokens == 128).all()
    assert got.stop.all()
    assert got.cancel_ns is not None
    assert (got.cancel_ns >= 0).mean() == pytest.approx(0.1, abs=0.015)
    assert got.cancel_ns[got.cancel_ns >= 0].mean() / S == pytest.approx(2, rel=0.15)


def test_a_share_asks_for_samples_of_the_recorded_length_and_others_keep_theirs() -> None:
    first = shape(trace(), ["label:share=0.5,n=3"], 0)
    assert set(first.n.tolist()) == {1, 3}
    then = shape(first, ["label:share=0.5,n=2"], 7)
    for row, (before, after) in enumerate(zip(first.n.tolist(), then.n.tolist(), strict=True)):
        assert after in (before, 2)
        assert then.samples is not None
        assert then.samples.lengths(row) == [3] * (after - 1)
    assert shape(then, ["label:n=1"], 0).samples is None


@examples(60)
@given(st.lists(st.sampled_from([
    "thin:keep=0.6", "window:start=5,end=45", "first:plays=4", "shuffle", "stretch:factor=3", "repeat:times=2",
    "arrive:rate=0.3", "ramp:start=1,end=2", "think:cap=7",
]), max_size=4), st.integers(0, 9))  # fmt: skip
def test_no_step_takes_a_play_apart(steps: list[str], seed: int) -> None:
    base = trace()
    try:
        got = shape(base, steps, seed)
    except UserError:  # nothing is left, or there is nobody left who waits
        return
    assert got.request_id is not None
    plays: dict[int, list[str]] = {}
    for number, name in zip(got.plays().tolist(), got.request_id, strict=True):
        plays.setdefault(number, []).append(name[0])
    assert {"".join(sorted(p)) for p in plays.values()} <= {"ab", "de", "c", "f", "g", "h"}
    said = [note.removeprefix("shape ").split(" (")[0] for note in got.notes]
    assert set(steps) <= set(said)


@pytest.mark.parametrize(
    ("step", "says"),
    [
        ("thim:keep=1", "unknown step 'thim' (did you mean \"thin\"?)"),
        ("thin", "shape thin: keep is missing"),
        ("thin:keep=0", "keep is 0 but must be above 0"),
        ("thin:kep=0.5", "unknown parameter 'kep' (did you mean \"keep\"?)"),
        ("window:start=1000", "no requests are left"),
        ("ramp:start=0,end=1", "must be above 0"),
        ("mix:weight=2,trace=synth:rate=1", "between 0 and 1"),
        ("mix:weight=0.5,trace=nowhere.csv", "no such trace file"),
    ],
)
def test_a_wrong_step_is_named(step: str, says: str) -> None:
    with pytest.raises(UserError) as error:
        shape(trace(), [step])
    assert says in str(error.value)


def test_a_run_records_the_steps_it_was_shaped_by() -> None:
    result = simulate(
        trace="synth:rate=20,prompt=50,output=5", requests=60, model="llama-3.1-8b", gpu="h100",
        shape=["thin:keep=0.5", "stretch:factor=2"],
    )  # fmt: skip
    said = [note for note in result.summary["notes"] if note.startswith("shape")]
    assert said[0].startswith("shape thin:keep=0.5 (")
    assert said[1] == "shape stretch:factor=2"
    assert result.summary["scenario"]["shape"] == ["thin:keep=0.5", "stretch:factor=2"]
    assert len(result.requests) < 45


def test_every_step_says_what_it_does() -> None:
    assert all(step.__doc__ for step in STEPS.values())
