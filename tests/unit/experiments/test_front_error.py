"""Fronts by the model's error, by hand: which members are told apart, and what may be among them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servesim.experiments.front_error import (
    SURELY,
    Candidate,
    best_error,
    best_text,
    front_errors,
    front_sentences,
    front_word,
    reach,
    tail_of,
)
from servesim.experiments.ranking import pareto_front
from servesim.intervals.case import Case
from servesim.intervals.fitted import Fitted
from servesim.intervals.pairs import LEVELS

CASE = Case("vllm", "1", "m", "h200", "fp8", 1, 1, 20.0, 1000.0, 120.0, 12.0, 0.0)
WIDTH = 0.2
"""Of the log ratio of two sizes: eight of ten lie within it, and as many in proportion within less."""
FOLD = {
    "terms": {},
    "quantile": dict.fromkeys(("ttft", "tpot", "e2e"), WIDTH),
    "levels": {key: [WIDTH * level / 0.8 for level in LEVELS] for key in ("ttft", "tpot", "e2e")},
}
FITTED = Fitted(
    {
        "known": {"engine": ["vllm"], "precision": ["fp8"], "gpu": ["h200"], "model": ["m"], "version": ["vllm 1"]},
        "pairs": {"kinds": {"size": 40}, "folds": {"deployment": FOLD, "model": FOLD}},
    }
)


def candidate(
    label: str, price: float, ms: float, flow: float = 100.0, tail: float | None = 0.01, **case: object
) -> Candidate:
    values = {"usd_per_million_tokens": price, "e2el_p99": ms, "output_throughput": flow, "e2el_mean": ms / 2}
    return Candidate(label, values, replace(CASE, **case), tail)  # type: ignore[arg-type]


def judged(*candidates: Candidate) -> dict[str, dict[str, object]]:
    front = pareto_front([{"label": c.label, "values": c.values} for c in candidates])
    return {entry["label"]: entry for entry in front_errors(candidates, front, {}, FITTED)}


def test_of_an_open_loop_a_dearer_server_never_beats_a_cheaper_one_and_it_may_be_beaten_by_that() -> None:
    cheap, dear = candidate("one", 1.0, 1000.0), candidate("two", 2.0, 1000.0 * math.exp(-0.1), tp=2)
    found = judged(cheap, dear)
    assert found["one"]["told"] is True
    assert found["one"]["against"] is None
    # The cheap one is as fast with times exp(-0.1) as long: half of 0.8 of all pairs are that far off on one side.
    assert found["two"]["sure"] == pytest.approx(1 - (1 - 0.4) / 2)
    assert (found["two"]["told"], found["two"]["against"]) == (False, "one")
    assert found["two"]["low"] == pytest.approx(1000 * math.exp(-0.1 - WIDTH))
    assert found["two"]["high"] == pytest.approx(1000 * math.exp(-0.1 + WIDTH))


def test_members_that_lie_farther_apart_than_the_interval_of_their_ratio_are_told_apart() -> None:
    found = judged(candidate("one", 1.0, 1000.0), candidate("two", 2.0, 1000.0 * math.exp(-0.21), tp=2))
    assert found["two"]["told"] is True
    assert found["two"]["sure"] == pytest.approx(1 - (1 - 0.8 * 0.21 / WIDTH) / 2)


def test_of_a_closed_loop_price_and_throughput_go_with_the_times() -> None:
    one = candidate("one", 1.0, 1000.0, 100.0, None)
    two = candidate("two", 1.1, 900.0, 180.0, None, tp=2)
    assert reach(two, one) == pytest.approx(1 / 1.1)
    assert reach(one, two) == pytest.approx(100 / 180)
    found = judged(one, two)
    assert found["one"]["sure"] == pytest.approx(1 - (1 - 0.8 * math.log(1.1) / WIDTH) / 2)
    assert found["one"]["told"] is False
    assert found["two"]["told"] is True


def test_what_is_beaten_by_a_little_may_be_on_the_front_and_by_much_is_not() -> None:
    best = candidate("best", 1.0, 1000.0)
    near = candidate("near", 1.0, 1000.0 * math.exp(0.05), tp=2)
    far = candidate("far", 1.0, 1000.0 * math.exp(0.5), tp=4)
    found = judged(best, near, far)
    assert set(found) == {"best", "near"}
    assert found["near"]["on"] is False
    assert found["near"]["sure"] == pytest.approx(1 - (1 - 0.2) / 2)
    assert front_word(found["near"], False) == "may be Pareto"
    assert front_word(found["best"], True) == "Pareto?"


def test_pairs_that_were_not_measured_get_words() -> None:
    found = judged(candidate("h200", 2.0, 1000.0), candidate("h100", 1.0, 1100.0, gpu="h100"))
    assert found["h200"]["told"] is None
    assert found["h100"]["told"] is True  # a dearer one never beats it, whatever its times
    entries = [{"rate": 4, **entry} for entry in found.values()]
    (said,) = front_sentences({"says": "propagated, not validated", "front": entries})
    assert "at 4 requests/s" in said
    assert "distinguishable from all others: h100" in said
    assert "not known for h200: no measured pairs have different models or GPUs" in said


def test_another_name_of_a_variant_has_no_entry_and_tells_nothing() -> None:
    one, same = candidate("one", 1.0, 1000.0), candidate("same", 1.0, 1000.0)
    assert [e["label"] for e in front_errors([one, same], {"one", "same"}, {"same": "one"}, FITTED)] == ["one"]


@given(st.lists(st.tuples(st.floats(0.5, 2), st.floats(500, 2000), st.floats(50, 200)), min_size=2, max_size=6))
def test_every_member_has_an_entry_and_what_is_told_off_the_front_has_none(points: list[tuple[float, ...]]) -> None:
    found = [candidate(str(i), *point, tail=None, tp=1 + i) for i, point in enumerate(points)]  # type: ignore[misc]
    front = pareto_front([{"label": c.label, "values": c.values} for c in found])
    entries = front_errors(found, front, {}, FITTED)
    assert {entry["label"] for entry in entries if entry["on"]} == front
    for entry in entries:
        assert entry["told"] is (entry["sure"] is None or entry["sure"] > 0.9 - 1e-9)
        assert entry["sure"] is None or 0.5 <= entry["sure"] <= 0.975
        assert entry["on"] or not entry["told"]


def test_the_best_by_a_mean_is_as_sure_as_its_nearest_rival_allows() -> None:
    best, rival = candidate("best", 1.0, 1000.0), candidate("rival", 1.0, 1000.0 * math.exp(0.05), tp=2)
    found = best_error(best, [rival, candidate("far", 1.0, 9000.0, tp=4)], "e2el_mean", FITTED)
    assert found["sure"] == pytest.approx(0.6)
    assert (found["against"], best_text(found)[:27]) == ("rival", "; better than rival: 60 % s")
    assert best_error(best, [rival], "request_goodput", FITTED)["says"].startswith("none: goodput")
    assert best_error(best, [candidate("h100", 1.0, 1100.0, gpu="h100")], "e2el_mean", FITTED)["sure"] is None
    assert "not validated" in best_error(best, [rival], "e2el_p99", FITTED)["says"]
    assert best_text({"label": "x"}) == ""
    assert f"over {100 * SURELY:.0f} % sure" in best_text({"sure": 0.975, "against": "a", "says": ""})


def test_in_an_open_loop_what_differs_by_less_than_the_last_requests_take_is_the_same() -> None:
    """It is on the front by a hair of throughput alone, and the other is surely faster."""
    slow = candidate("slow", 1.0, 1000.0 * math.exp(0.3), 100.5)
    fast = candidate("fast", 1.0, 1000.0, 100.0, tp=2)
    found = judged(slow, fast)
    assert found["slow"]["on"] is True
    assert found["slow"]["sure"] == pytest.approx(0.025 * 2, abs=0.03)
    assert found["slow"]["told"] is False
    assert found["fast"]["told"] is True


def test_the_tail_of_an_open_loop_is_what_its_last_requests_take() -> None:
    summary = {"latency_ms": {"e2el": {"p99": 2000.0}}, "duration_s": 100.0}
    assert tail_of(summary, open_loop=False) is None
    assert tail_of(summary, open_loop=True) == pytest.approx(0.02)
    assert tail_of(summary | {"duration_s": 3.0}, open_loop=True) is None
    assert tail_of({"latency_ms": {"e2el": None}, "duration_s": 1.0}, open_loop=True) is None
