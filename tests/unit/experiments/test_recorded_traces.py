"""A recorded trace keeps its shape: experiments replay the peak it has, and agree with a run of the whole trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import servesim
from servesim import UserError
from servesim.experiments.busy_times import share_interval, worst_window
from servesim.experiments.capacity_answer import never_text
from servesim.experiments.compare import compare
from servesim.experiments.replicates import replicates_of
from servesim.run.scenario import Scenario
from servesim.run.sections import parse_rate
from servesim.run.trace_source import open_scenario
from servesim.workload.peak import MINUTE_NS, busiest, peak_note

SERVER: dict[str, Any] = {"model": "llama-3.2-1b", "gpu": "l40s", "slo": "ttft:200,tpot:50"}


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A made-up day in miniature: 42 minutes with a request every 10 s, two of them in the middle with 3 a second."""
    times = np.concatenate([np.arange(0, 1200, 10.0), np.arange(1200, 1320, 1 / 3), np.arange(1320, 2520, 10.0)])
    path = tmp_path_factory.mktemp("logs") / "day.csv"
    rows = [f"{int(t * 1e9)},{1200 + 37 * i % 900},{20 + i % 30}" for i, t in enumerate(times)]
    path.write_text("\n".join(["arrival_ns,prompt_len,output_len", *rows]) + "\n")
    return str(path)


def run(day: str, **settings: Any) -> dict[str, Any]:
    return servesim.simulate(**SERVER, trace=day, **settings).summary


def test_capacity_compare_and_run_agree_on_the_whole_trace(day: str) -> None:
    rate = 5.0  # the peak alone is more than one server carries
    asked = SERVER | {"trace": day, "rate": rate, "jobs": 1}
    found = servesim.capacity(**asked, max_replicas=8).iloc[0]
    assert found["verdict"] == "carries"
    assert found["replicas"] > 1
    taken, fewer = (run(day, rate=rate, replicas=int(found["replicas"]) - less) for less in (0, 1))
    assert taken["goodput"]["slo_attainment"] == found["attainment"] >= 0.99
    assert found["attainment_low"] <= taken["goodput"]["slo_attainment"] <= found["attainment_high"]
    assert found["ttft_p99"] == pytest.approx(taken["latency_ms"]["ttft"]["p99"])
    assert fewer["goodput"]["slo_attainment"] < 0.99
    rows = compare(**asked, kv="paged,prefix-hash", metrics="ttft_p99,slo_attainment")
    one = run(day, rate=rate, kv="prefix-hash")
    mine = rows[rows["variant"] == "prefix-hash"].set_index("metric")["value"]
    assert mine["ttft_p99"] == pytest.approx(one["latency_ms"]["ttft"]["p99"])
    assert mine["slo_attainment"] == pytest.approx(one["goodput"]["slo_attainment"])


def test_the_highest_rate_is_one_at_which_the_whole_trace_passes(day: str) -> None:
    frame = servesim.capacity(**SERVER, trace=day, jobs=1, tolerance=0.1)
    found = frame.iloc[0]
    passed, missed = (run(day, rate=r)["goodput"]["slo_attainment"] for r in (found["rate"], 1.15 * found["rate"]))
    assert passed >= 0.99 > missed
    assert found["rate_low"] <= found["rate"] < found["rate_high"]
    assert any("peak: the busiest five minutes" in note for note in frame.attrs["document"]["notes"])


def test_a_bad_window_fails_what_the_whole_would_pass(day: str) -> None:
    asked = SERVER | {"trace": day, "rate": 5, "jobs": 1, "attainment": 0.4, "max_replicas": 1}
    whole = servesim.capacity(**asked, window_requests=10_000, window_minutes=0.5)
    assert whole["verdict"].tolist() == ["carries"]
    assert whole["window"].tolist() == [None]
    minute = whole["minute"].iloc[0]
    assert minute["share"] < 0.4 <= whole["attainment"].iloc[0]
    assert any("one bad minute" in note for note in whole.attrs["document"]["notes"])
    strict = servesim.capacity(**asked, window_requests=50, window_minutes=0.5)
    row, document = strict.iloc[0], strict.attrs["document"]
    assert row["verdict"] == "never"
    assert row["window"]["share"] == row["best_attainment"] < 0.4
    assert "in the 0.5 minutes starting at minute" in never_text(document["rows"][0])


@pytest.mark.medium
def test_compare_and_sweep_tell_of_a_busy_time_that_the_whole_trace_hides(tmp_path: Path) -> None:
    """A request a second for an hour, and thirty long ones at once: 99.2 % of all are within the limits."""
    times = np.sort(np.concatenate([np.arange(3600.0), np.linspace(1800, 1800.2, 30)]))
    lengths = np.where((times > 1800) & (times < 1801), 6000, 100)
    path = tmp_path / "hour.csv"
    rows = [f"{int(t * 1e9)},{n},2" for t, n in zip(times, lengths, strict=True)]
    path.write_text("\n".join(["arrival_ns,prompt_len,output_len", *rows]) + "\n")
    asked = SERVER | {"trace": str(path), "jobs": 1, "kv": "paged,prefix-hash"}
    for found in (compare(**asked, intervals=False), servesim.sweep(**asked, intervals=False)):
        document = found.attrs["document"]
        notes = [note for note in (*document["warnings"], *document["notes"]) if note.startswith("paged: ")]
        assert len(notes) == 2
        assert "paged: in its worst 10 minutes, starting at minute" in notes[0]
        assert "99 % required)" in notes[0]
        assert "paged: one bad minute, starting at minute" in notes[1]


def test_windows_are_parts_of_one_stretched_run_and_keep_their_own_rates(day: str) -> None:
    settings = SERVER | {"trace": day, "rate": "3x"}
    repeats = replicates_of(settings, 4)
    whole = open_scenario(Scenario.of({k: v for k, v in settings.items() if k != "rate"}))
    size = len(whole) // 4
    assert [repeats.rows(j) for j in range(4)] == [(i * size, (i + 1) * size) for i in range(4)]
    assert all(repeats.settings(settings, j) == settings for j in range(4))
    assert [replicates_of(settings, None, window=100).rows(j) for j in range(2)] == [(0, 100), (100, 200)]
    assert len(replicates_of(settings, 3, window=100)) == 3
    assert len(replicates_of(settings | {"requests": 250}, None, window=100)) == 2  # of the first 250 rows
    with pytest.raises(UserError, match="too few"):
        replicates_of(settings | {"requests": 50}, None, window=100)


def test_a_factor_scales_every_gap_alike(day: str) -> None:
    base = SERVER | {"trace": day}
    recorded, faster = (open_scenario(Scenario.of(base | {"rate": rate})).arrival_ns for rate in (None, "3x"))
    assert np.abs(faster * 3 - recorded).max() <= 2  # ns
    mean = (len(recorded) - 1) / recorded[-1] * 1e9
    assert np.abs(open_scenario(Scenario.of(base | {"rate": 3 * mean})).arrival_ns - faster).max() <= 1


@pytest.mark.parametrize(("given", "rate"), [("3x", "3x"), (" 2.5X", "2.5x"), ("4.4", 4.4), (2, 2.0), ("inf", np.inf)])
def test_a_rate_is_a_number_or_a_factor(given: Any, rate: Any) -> None:
    assert parse_rate(given) == rate
    assert parse_rate(parse_rate(given)) == rate


@pytest.mark.parametrize("given", ["x", "0x", "-1", "infx", "nan", "fast"])
def test_rates_that_are_none_are_refused(given: str) -> None:
    with pytest.raises(UserError, match="rate is"):
        Scenario.of({"trace": "synth:", "model": "m", "gpu": "g", "rate": given})


def test_a_peak_is_told_where_there_is_one() -> None:
    quiet = np.arange(0, 60, 0.05)  # minutes
    times = np.sort(np.concatenate([quiet, np.linspace(30, 34, 400)]))
    arrival = (times * MINUTE_NS).astype(np.int64)
    start, most = busiest(arrival)
    assert start / MINUTE_NS == pytest.approx(30, abs=1.01)
    assert most == pytest.approx(500, abs=2)
    note = peak_note(arrival)
    assert note is not None
    assert "have 3.7 times the mean rate" in note  # 500 of 1,600 in 5 of 60 minutes
    assert peak_note((quiet * MINUTE_NS).astype(np.int64)) is None
    assert peak_note(arrival[:200]) is None  # too short for a mean


@given(
    st.lists(st.tuples(st.floats(0, 30), st.booleans()), min_size=1, max_size=60),
    st.floats(0.5, 20),
    st.integers(1, 20),
)
def test_the_worst_window_is_the_worst_of_all_that_begin_with_an_arrival(
    rows: list[tuple[float, bool]], minutes: float, least: int
) -> None:
    rows.sort()
    arrival = np.array([t for t, _ in rows]) * MINUTE_NS
    good = np.array([ok for _, ok in rows])
    inside = [(arrival >= a) & (arrival < a + minutes * MINUTE_NS) for a in arrival]
    shares = [good[mask].mean() for mask in inside if mask.sum() >= least]
    found = worst_window(arrival, good, minutes, least)
    if found is None:
        assert not shares or any(mask.all() for mask in inside)
    else:
        assert found.share == pytest.approx(min(shares))
        assert found.low <= found.share <= found.high
        assert found.requests >= least


def test_requests_that_fail_together_say_less() -> None:
    scattered, together = np.ones(400), np.ones(400)
    scattered[::20] = 0
    together[100:120] = 0
    widths = [high - low for low, high in map(share_interval, (scattered, together))]
    assert widths[1] > 1.5 * widths[0]


def test_a_log_need_not_be_a_name(day: str) -> None:
    trace = servesim.load_trace(Path(day))
    found = servesim.capacity(**SERVER, trace=trace, rate="1.5x", replicates=2, jobs=1).iloc[0]
    assert found["rate"] == pytest.approx(1.5 * (len(trace) - 1) / (trace.arrival_ns[-1] / 1e9))
