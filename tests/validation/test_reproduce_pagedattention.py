"""The figures of PagedAttention (SOSP 2023) that follow from memory alone, on a short trace."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from servesim_lab.claims import Outcome, find
from servesim_lab.claims.lengths import SHAREGPT_FILE, SHAREGPT_MEANS, fit_sharegpt, poisson, sharegpt
from servesim_lab.claims.pagedattention import Bench, batches, shares

HOST_NS = 7e6  # near what the whole experiment finds


def test_reservation_holds_7_10_and_14_requests_and_paging_fills_the_memory() -> None:
    count = 1500
    trace = poisson("2/s", sharegpt(count, 0), 2.0, 0)
    outcome = Outcome()
    bench = Bench(find("pagedattention")[0].given(), HOST_NS)
    runs = {name: bench.serve(name, trace) for name in ("Orca (Max)", "Orca (Pow2)", "Orca (Oracle)", "vLLM")}
    batches(outcome, runs)
    shares(outcome, runs, bench.serve("vLLM", poisson("20/s", sharegpt(count, 0), 20.0, 0)))
    for row in outcome.rows:
        print(f"{row.what}: {row.published} published, {row.simulated} here, {row.verdict}")
    assert {row.verdict for row in outcome.rows} == {"reproduced", "calibrated"}
    assert runs["Orca (Max)"].batch == 7


def test_sharegpt_lengths_have_the_published_means() -> None:
    for lengths, mean in zip(sharegpt(20_000, 3), SHAREGPT_MEANS, strict=True):
        assert lengths.mean() == pytest.approx(mean, rel=0.02)


def test_the_length_table_is_what_its_fit_makes_of_the_rows(shared_data: Callable[[str], Path]) -> None:
    import servesim_lab.claims.lengths as lengths

    fitted = fit_sharegpt(shared_data("traces/sharegpt/sharegpt_val_10k_llama2.csv"))
    assert json.loads(Path(lengths.__file__).with_name(SHAREGPT_FILE).read_text()) == json.loads(json.dumps(fitted))


def test_experiments_are_found_by_name() -> None:
    assert [one.name for one in find("pagedattention")] == ["pagedattention"]
