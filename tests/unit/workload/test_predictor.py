"""Predicted output lengths: as wrong as stated, the same in every run, and never the truth unless asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import servesim
from servesim.errors import UserError
from servesim.workload.predictor import lognormal_sigma, predict
from servesim.workload.trace import Trace
from servesim.workload.workload import TraceWorkload
from tests.support.worlds import toy_trace


def trace(n: int) -> Trace:
    return Trace.from_lengths("t", np.zeros(n, dtype=np.int64), np.ones(n), np.full(n, 100_000))


@pytest.mark.parametrize("error", [0.05, 0.3, 1.0, 3.0])
def test_the_mean_relative_error_is_the_stated_one_and_half_the_predictions_are_low(error: float) -> None:
    predicted = predict(f"random:error={error}", trace(200_000), seed=1)
    off = predicted / 100_000 - 1
    assert np.abs(off).mean() == pytest.approx(error, rel=0.03)
    assert (off < 0).mean() == pytest.approx(0.5, abs=0.005)


def test_the_sigma_for_a_known_error_is_the_closed_form_inverted() -> None:
    # E|exp(Z) - 1| = exp(1/2) erf(1/sqrt 2) = 1.64872 * 0.682689 = 1.12556
    assert lognormal_sigma(1.1255644) == pytest.approx(1.0, abs=1e-5)


def test_draws_depend_on_seed_and_row_alone() -> None:
    few, many = (predict("random:error=0.5", trace(n), seed=3) for n in (10, 50))
    assert few.tolist() == many[:10].tolist()
    assert predict("random:error=0.5", trace(10), seed=4).tolist() != few.tolist()


def test_without_a_predictor_requests_carry_their_cap_and_exact_is_the_truth() -> None:
    capped = toy_trace([0, 0], [1, 1], [5, 7], caps=[9, 7])
    request, _ = TraceWorkload(capped).pop()
    assert request.predicted_output_len == 9
    request, _ = TraceWorkload(capped, predict("exact", capped, 0)).pop()
    assert request.predicted_output_len == 5


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("rnd:error=1", "unknown predictor 'rnd' (did you mean \"random\"?)"),
        ("random", "specify the mean relative error"),
        ("random:error=-1", "must be from 0"),
        ("random:error=x", "must be from 0"),
        ("random:err=1", "unknown parameter 'err'"),
        ("exact:error=1", "unknown parameter 'error'"),
    ],
)
def test_a_wrong_predictor_is_named(spec: str, says: str) -> None:
    with pytest.raises(UserError) as error:
        predict(spec, trace(1), 0)
    assert says in str(error.value)


@pytest.mark.parametrize(("needs", "told"), [("", False), ('needs = frozenset({"predicted_output_len"})', True)])
def test_a_scheduler_that_does_not_declare_it_is_told_no_prediction(needs: str, told: bool, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"""
from servesim.policies.scheduling.ordered import Ordered

class Mine(Ordered):
    preemptive = True
    {needs or "pass"}

    def rank(self, request, now):
        return request.predicted_output_len
""")
    trace = toy_trace([0] * 40, [50] * 40, [1 + 7 * row % 60 for row in range(40)], caps=[100] * 40)
    latencies = []
    for predictor in ("max_tokens", "exact"):
        settings = {"scheduler": f"{file}:Mine:max_num_seqs=4", "predictor": predictor}
        run = servesim.simulate(trace=trace, model="llama-3.1-8b", gpu="h200", **settings)
        latencies.append(run.requests["ttft_ns"].tolist())
    assert (latencies[0] != latencies[1]) is told
