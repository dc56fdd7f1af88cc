"""Error bars beside what was recorded: open loops of a server that nothing of them was fitted to, and cells as they are
priced now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import servesim
from servesim.experiments.accuracy.files import CELLS, write
from servesim.experiments.accuracy.study import accuracy
from servesim.experiments.recording_formats import read_folder
from servesim.intervals.case import METRICS
from servesim.intervals.fitted import shipped
from servesim.run.stretched import SAYS
from servesim_lab.intervals.residuals import read_measured

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["sweep_rate__agg_2rps__vanilla", "w5_sweep__agg6"])
def test_means_and_p99_of_an_open_loop_lie_inside(name: str, shared_data: Callable[[str], Path]) -> None:
    folder = shared_data(f"groundtruth/residency_qwen3_14b_h100/{name}.csv.gz").parent
    run = next(run for run in read_folder(folder) if run.name == name)
    arrival_ns = run.arrival_ns - run.arrival_ns[0]
    columns = {"arrival_ns": arrival_ns, "prompt_len": run.prompt_len, "output_len": run.output_len}
    summary = servesim.simulate(
        trace=servesim.load_trace(pd.DataFrame(columns)),
        model="qwen3-14b",
        gpu="h100",
        engine={"version": "0.23.0"},
        propagate=True,
    ).summary
    bars = summary["intervals"]
    assert bars["kind"] == "model and version"
    assert bars["propagated"]["says"] == SAYS
    tpot = (run.e2el_ms - run.ttft_ms) / np.maximum(run.output_len - 1, 1)
    for key, measured in (("ttft", run.ttft_ms), ("tpot", tpot), ("e2el", run.e2el_ms)):
        assert bars[key]["low"] < float(np.nanmean(measured)) < bars[key]["high"]
        p99 = bars["propagated"][f"{key}_p99"]
        assert p99["low"] < float(np.nanpercentile(measured, 99)) < p99["high"]


@pytest.mark.parametrize(
    ("laboratory", "folders"),
    [
        ("LLMServingSim", ["llmservingsim_rtxpro6000"]),
        ("BLIS", ["blis_training_h100", "busy/blis_training_h100"]),
        ("gpt-oss recordings", ["gptoss120b_h200/none", "busy/gptoss120b_h200/none"]),
        ("Qwen3-14B recordings", ["residency_qwen3_14b_h100", "busy/residency_qwen3_14b_h100"]),
    ],
)
def test_errors_of_a_laboratory_of_recorded_servers_are_those_shipped(
    laboratory: str, folders: list[str], shared_data: Callable[[str], Path]
) -> None:
    _, document = accuracy(*(shared_data(f"groundtruth/{folder}") for folder in folders))
    overall = document["scores"][0]
    (ours,) = (row for row in shipped().document["laboratories"]["left_out"] if row["laboratory"] == laboratory)
    assert (overall["cells"], overall["answered"]) == (ours["kept"], ours["answered"])
    for metric in METRICS:
        assert ours["errors"][metric]["mape"] == pytest.approx(overall["over_cells"][metric]["mape"]["value"], abs=5e-3)


def test_shipped_statistics_are_of_the_simulator_as_it_is(shared_data: Callable[[str], Path], tmp_path: Path) -> None:
    """These cells are among those fitted to, so this says nothing of new servers: it notices that prices changed."""
    given = shared_data("groundtruth/inferencex_cells/given.csv")
    only = {"gpu": ["h100_sxm", "h200_sxm"], "model": ["Qwen3-32B", "gpt-oss-120b", "Llama-3.1-70B"]}
    scored, document = accuracy(given, only=only, limit=30)
    write(tmp_path, scored, document)
    cells = read_measured([tmp_path / CELLS])
    assert len(cells) >= 20
    for metric in METRICS:
        inside = 0
        for cell in cells:
            kind, why = shipped().kind_of(cell.case)
            assert kind is not None, why
            assert kind.name == "server"
            factors = shipped().factors(replace(cell.case, measured=True), kind, metric)  # not widened
            inside += factors.at(0.1) <= np.exp(cell.residuals[metric]) <= factors.at(0.9)
        assert inside / len(cells) > 0.65, metric
