"""llm-d's two ladders of 2025 (../shared/cluster.md 7a), simulated from its scorers' source by servesim_lab.ladders.

One number is chosen on them: the time from client to engine, by precise prefixes at 3 requests/s of the 73 % ladder.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from servesim_lab.ladders import BROKEN_S, LADDERS, Found, climb, knee, measured, trace_of

RATES = {"73": (3, 15, 20, 35, 40), "37": (3, 8, 15, 20)}
"""Some of the rates."""


@cache
def simulated(share: str, router: str) -> dict[float, Found]:
    found = climb(LADDERS[share], router, RATES[share])
    print(share, router, {rate: [round(x, 3) for x in of] for rate, of in found.items()})
    return found


def ttft(found: dict[float, Found]) -> dict[float, float]:
    return {rate: of.ttft_s for rate, of in found.items()}


@pytest.fixture(scope="module")
def truth(request: pytest.FixtureRequest) -> Callable[[str, str], dict[float, Found]]:
    find: Callable[[str], Path] = request.getfixturevalue("shared_data")
    folder = find("groundtruth/cluster/llmd_kvcache_73pct_qps.csv").parent
    tables = {share: measured(folder, share) for share in LADDERS}
    return lambda share, router: {rate: tables[share][router][rate] for rate in RATES[share]}


def test_every_stage_asks_for_the_prompts_in_the_same_order() -> None:
    ladder = LADDERS["37"]
    trace, of_stage = trace_of(ladder, [(9, 30), (3, 50)])
    assert of_stage.tolist() == [0] * 270 + [1] * 150
    assert trace.arrival_ns[269] == pytest.approx(30e9)  # constant: exactly its seconds
    assert trace.content is not None
    asked = [trace.content.runs(row) for row in range(len(of_stage))]
    assert asked[:21] == asked[249:270]  # 83 groups of 3, over and over
    assert asked[:150] == asked[270:]


@pytest.mark.slow
@pytest.mark.parametrize("router", ["estimated", "precise"])
def test_the_73_percent_ladder_breaks_where_it_was_measured_to(
    router: str, truth: Callable[[str, str], dict[float, Found]]
) -> None:
    """Approximate prefixes queue from 40/s on, precise ones never."""
    found, there = ttft(simulated("73", router)), ttft(truth("73", router))
    assert knee(found) == knee(there) == (40 if router == "estimated" else None)


@pytest.mark.slow
@pytest.mark.parametrize("router", ["estimated", "precise"])
def test_ttft_of_the_73_percent_ladder_is_within_a_factor_of_2_below_the_knee(
    router: str, truth: Callable[[str, str], dict[float, Found]]
) -> None:
    found, there = ttft(simulated("73", router)), ttft(truth("73", router))
    for rate in (3, 15, 20):
        assert 0.5 < found[rate] / there[rate] < 2, rate


@pytest.mark.slow
def test_eager_engines_take_the_measured_time_per_token(truth: Callable[[str, str], dict[float, Found]]) -> None:
    """Nothing is chosen on these: 22 to 58 ms a token."""
    for share in LADDERS:
        there = truth(share, "precise")
        for rate, of in simulated(share, "precise").items():
            assert of.tpot_s == pytest.approx(there[rate].tpot_s, rel=0.2), (share, rate)


@pytest.mark.slow
def test_the_37_percent_ladder_never_breaks_with_precise_prefixes(
    truth: Callable[[str, str], dict[float, Found]],
) -> None:
    found, there = ttft(simulated("37", "precise")), ttft(truth("37", "precise"))
    assert knee(found) is knee(there) is None
    assert all(0.5 < found[rate] / there[rate] < 2 for rate in there)


@pytest.mark.slow
def test_the_37_percent_ladder_s_break_with_approximate_prefixes_is_not_reproduced(
    truth: Callable[[str, str], dict[float, Found]],
) -> None:
    """Measured: 7.6 s at 20/s, where one replica's memory was full. Here groups are dealt out evenly, so none's is."""
    assert truth("37", "default")[20].ttft_s > BROKEN_S
    assert knee(ttft(simulated("37", "default"))) is None
