"""Traffic as a sum of clients: a fit of made-up clients gives back their rates, burstiness and lengths."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from servesim.errors import UserError
from servesim.traces import load_preset
from servesim.traces.presets.fit import main
from servesim.traces.presets.servegen import ServeGenFit


def made_up(folder: Path) -> Path:
    """Two clients: 0 steady at 2/s with prompts of 100 (of 900 in the afternoon), 1 bursty at 1/s in the second half of
    the day, its lengths unknown."""
    folder.mkdir()
    for client, (rate, cv) in enumerate([(2.0, 0.5), (1.0, 4.0)]):
        rows = [f"{w * 600},{rate if client == 0 or w >= 72 else 0},{cv},Gamma,1,1\n" for w in range(200)]
        (folder / f"chunk-{client}-trace.csv").write_text("".join(rows))
    day = {
        str(q * 21600): {"input_tokens": str({100 if q < 2 else 900: 1.0}), "output_tokens": "{10: 0.5, 20: 0.5}"}
        for q in range(4)
    }
    (folder / "chunk-0-dataset.json").write_text(json.dumps(day))
    return folder


@pytest.fixture
def fit(tmp_path: Path) -> ServeGenFit:
    made_up(tmp_path / "day")
    assert main([str(tmp_path / "day"), "--name", "t", "--citation", "c", "--out", str(tmp_path / "t.json")]) == 0
    return ServeGenFit.from_json(json.loads((tmp_path / "t.json").read_text()))


def test_every_ten_minutes_have_the_rate_of_the_original(fit: ServeGenFit) -> None:
    trace = fit.draw(seed=1, scale=1)
    counts = np.bincount(trace.arrival_ns // (600 * 10**9), minlength=144)
    assert np.abs(counts[:72] - 1200).max() <= 1
    assert np.abs(counts[72:] - 1800).max() <= 2
    assert fit.draw(seed=1, scale=0.1, start=43_200, seconds=600).arrival_ns.max() < 600 * 10**9
    assert len(fit.draw(seed=1, scale=0.1, start=43_200, seconds=600)) == pytest.approx(180, abs=2)


def test_clients_keep_their_burstiness_and_are_told_apart(fit: ServeGenFit) -> None:
    trace = fit.draw(seed=2, scale=1, start=43_200, seconds=12_000)
    tenant = np.array(trace.labels["tenant"])
    for name, cv in (("client-0", 0.5), ("client-1", 4.0)):
        gaps = np.diff(trace.arrival_ns[tenant == name])
        assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1)


def test_lengths_follow_the_time_of_day_and_unknown_clients_borrow_theirs(fit: ServeGenFit) -> None:
    morning = fit.draw(seed=3, scale=0.2, seconds=7200)
    assert set(morning.prompt_len.tolist()) == {100}
    assert set(morning.output_len.tolist()) <= set(range(10, 21))
    evening = fit.draw(seed=3, scale=0.2, start=64_800, seconds=7200)
    tenant = np.array(evening.labels["tenant"])
    assert set(evening.prompt_len[tenant == "client-0"].tolist()) == {900}
    borrowed = evening.prompt_len[tenant == "client-1"]
    assert (borrowed == 100).mean() == pytest.approx(0.5, abs=0.1)


def test_the_first_requests_are_a_prefix_and_seeds_differ(fit: ServeGenFit) -> None:
    few, many = fit.draw(50, seed=4), fit.draw(300, seed=4)
    assert few.arrival_ns.tolist() == many.arrival_ns[:50].tolist()
    assert few.output_len.tolist() == many.output_len[:50].tolist()
    assert fit.draw(50, seed=5).arrival_ns.tolist() != few.arrival_ns.tolist()


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("servegen-m-large:scale=0", "scale is 0 but must be above 0"),
        ("servegen-m-large:start=90000", "does not fit within one day"),
        ("servegen-m-large:scal=1", 'did you mean "scale"'),
        ("azure-conv-2023:scale=1", "has no parameters"),
    ],
)
def test_wrong_parameters_are_named(spec: str, says: str) -> None:
    with pytest.raises(UserError) as error:
        load_preset(spec)
    assert says in str(error.value)


def test_a_damaged_profile_names_its_line(tmp_path: Path) -> None:
    folder = made_up(tmp_path / "day")
    (folder / "chunk-1-trace.csv").write_text("0,1,1,Gamma,1,1\n600,much\n")
    assert main([str(folder), "--name", "t", "--out", str(tmp_path / "t.json")]) == 2
