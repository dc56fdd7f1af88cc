"""Pairs of measured cells, by hand and on servers that are made up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from servesim.intervals.case import Case
from servesim_lab.intervals.pairs import PairData, fit_pairs, judge_pairs, pairs
from servesim_lab.intervals.residuals import Measured

CASE = Case("vllm", "1", "m", "h100", "fp8", 1, 1, 8.0, 1000.0, 200.0, 10.0, 0.0)


def cell(y: float = 0.0, clients: int = 8, gpus: int = 1, **changed: object) -> Measured:
    case = replace(CASE, tp=gpus, in_flight=float(clients), **changed)  # type: ignore[arg-type]
    return Measured(case, dict.fromkeys(("ttft", "tpot", "e2e"), y), (1000, 81), clients, gpus, 81.0)


def test_sizes_pair_at_as_many_clients_or_as_many_a_gpu_and_engines_at_the_same_gpus() -> None:
    cells = [
        cell(),
        cell(gpus=2),
        cell(gpus=2, clients=16),
        cell(gpus=2, clients=32),
        cell(engine="sglang"),
        cell(gpu="x"),
    ]
    found = {(pair.kind, pair.second.gpus, pair.second.concurrency) for pair in pairs(cells) if pair.first is cells[0]}
    assert found == {("size", 2, 8), ("size", 2, 16), ("engine", 1, 8)}


def test_a_price_is_gpus_and_end_to_end_time_over_clients() -> None:
    (pair,) = pairs([cell(0.3), cell(0.1, gpus=2)])  # the same times on twice the GPUs
    assert pair.cheaper == pytest.approx(-np.log(2))
    assert pair.residual("e2e") == pytest.approx(0.2)


def made_up(noise: float) -> list[Measured]:
    """Twelve servers of four models, each at two sizes and two loads; the larger has residuals of `noise` at most."""
    rng = np.random.default_rng(5)
    return [
        cell(float(rng.uniform(-noise, noise)), clients, gpus, model=f"m{i % 4}", version=str(i))
        for i in range(12)
        for gpus in (1, 2)
        for clients in (8, 32)
    ]


def test_a_deployment_pair_weighs_one_and_folds_bar_what_shares_a_deployment() -> None:
    data = PairData.of(made_up(0.1))
    assert sum(data.weights) == pytest.approx(12 + 4 * 3 * 2)  # sizes of a server; versions of a model at a size
    folds = data.folds("deployment", np.ones(len(data.pairs), dtype=bool))
    assert (np.sum([fold.predicted for fold in folds], axis=0) == 1).all()
    for fold in folds:
        inside = {name for pair, one in zip(data.pairs, fold.predicted, strict=True) if one for name in pair.names}
        outside = {name for pair, one in zip(data.pairs, fold.barred, strict=True) if not one for name in pair.names}
        assert not inside & outside


@pytest.mark.parametrize("what", ["deployment", "model"])
def test_left_out_ratios_lie_inside_and_decided_pairs_are_right(what: str) -> None:
    found = judge_pairs(made_up(0.1), what)
    assert found["tpot"]["coverage"]["value"] > 0.75
    assert found["cheaper"]["right_of_decided"]["value"] == 1.0  # sizes are a factor of two apart, errors a tenth
    assert found["cheaper"]["decided_pairs"] > 0


def test_too_few_pairs_say_nothing() -> None:
    assert fit_pairs(made_up(0.1)[:32]) == {}  # eight servers
    assert fit_pairs(made_up(0.1))["kinds"] == {"size": 24, "version": 48}
