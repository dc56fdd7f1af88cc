"""Times of starts against the phases that recorded servers logged."""

from __future__ import annotations

import pytest

from servesim.run.start import start_of

GIB = 2**30


def test_by_default_a_start_takes_as_long_as_the_recorded_warm_one() -> None:
    # vllm issue 20264: 3.42 GiB of weights, the first response after 59 s
    assert start_of({}).total_s(3.4213 * GIB) == pytest.approx(59, rel=0.02)


def test_a_cold_start_is_the_sum_of_its_logged_phases() -> None:
    # vllm issue 44881: 16 s, 21.82 GiB in 18 s, 43 s, 210 s; told as about 277 s
    parts = {"boot_s": 16, "weights_gb_s": 1.3, "compile_s": 43, "graphs_s": 0, "warm_up_s": 210}
    assert start_of(parts).total_s(21.82 * GIB) == pytest.approx(16 + 18 + 43 + 210, abs=0.1)


def test_a_start_from_no_node_is_mostly_the_node() -> None:
    # kaito issue 2325: 51.75 GiB in 62 s; 873 s without the benchmark behind it
    parts = {
        "node_s": 410,
        "pull_s": 111,
        "boot_s": 95,
        "weights_gb_s": 0.9,
        "compile_s": 0,
        "graphs_s": 0,
        "warm_up_s": 195,
    }
    assert start_of(parts).total_s(51.75 * GIB) == pytest.approx(873, abs=1)
