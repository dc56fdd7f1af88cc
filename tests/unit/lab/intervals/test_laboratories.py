"""A laboratory left out: how far its results lie beyond bars fitted without it, by hand and on made-up servers."""

from __future__ import annotations

import csv
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from servesim.cli.app import app
from servesim.errors import UserError
from servesim.intervals.case import CROWDS, METRICS, Case
from servesim.intervals.fitted import Fitted
from servesim_lab.intervals.laboratories import Beyond, Ends, Laboratories, described, laboratories, named
from servesim_lab.intervals.residuals import Measured
from tests.unit.lab.intervals.test_fit import HEAD, ROW

CASE = Case("vllm", "1", "m", "h100", "fp8", 1, 1, 8.0, 1000.0, 200.0, 10.0, 0.0)


FEW = CROWDS[0]
KEPT = Counter({"experts": 40, "makers": 40, "nobody tuned": 40})


def cells_of(laboratory: str, slower: float = 0.0, servers: int = 12) -> list[Measured]:
    """Results of servers of one product at as many sizes: log(measured / simulated) within .05 around `slower`."""
    rng = np.random.default_rng(7)
    return [
        Measured(
            replace(CASE, tp=tp + 1, in_flight=float(clients)),
            dict.fromkeys(METRICS, slower + float(rng.uniform(-0.05, 0.05))),
            (1000 + clients, 81),
            clients,
            tp + 1,
            81.0,
            laboratory,
        )
        for tp in range(servers)
        for clients in (4, 8, 16)
    ]


def by_hand(low: list[float], high: list[float], names: str) -> Beyond:
    far = (np.array(low), np.array(high))
    weights = np.array([1 / names.count(name) for name in names])
    return Beyond(weights, ("server",) * len(names), (FEW,) * len(names), dict.fromkeys(METRICS, far))


def test_a_laboratory_needs_the_least_widening_that_holds_eight_of_ten_results() -> None:
    slow = by_hand([0.0] * 10, [1.0 + 0.1 * i for i in range(10)], "abcdefghij")
    assert slow.needs("e2e", FEW) == pytest.approx((1.0, 1.7))
    assert slow.inside("e2e") == pytest.approx(0.1)
    assert slow.inside("e2e", {FEW: Ends(1.0, 1.7)}) == pytest.approx(0.8)
    both = by_hand([1.3, 1.2, 1.1] + [0.0] * 7, [0.0] * 7 + [1.9, 1.8, 1.1], "abcdefghij")
    assert both.needs("e2e", FEW) == pytest.approx((1.3, 1.1))  # 1.2 and 1.8, or 1.1 and 1.9, take more in sum
    inside = by_hand([0.9] * 10, [0.0] * 10, "abcdefghij")
    assert inside.needs("tpot", FEW) == (1.0, 1.0)  # bars are never narrower than those of a known laboratory


def test_deployments_weigh_the_same_however_many_their_results() -> None:
    two = by_hand([0.0] * 5, [1.5, 0.0, 0.0, 0.0, 0.0], "abbbb")
    assert two.needs("ttft", FEW) == (1.0, 1.5)  # the one result of `a` is half of the weight
    assert two.inside("ttft") == pytest.approx(0.5)


def test_the_laboratory_whose_servers_are_slower_widens_the_high_end_alone() -> None:
    found = laboratories(cells_of("experts") + cells_of("makers"), cells_of("nobody tuned", slower=0.4), KEPT)
    for metric in METRICS:
        ends = found["wider"][FEW][metric]
        assert ends["high"] > 5  # bars of .05 on either side, results at .4
        assert ends["low"] < 1.5
        assert ends["of"]["high"] == "nobody tuned"
    rows = {row["laboratory"]: row for row in found["left_out"]}
    assert rows["nobody tuned"]["e2e"]["not_widened"] == 0.0
    assert rows["nobody tuned"]["e2e"]["inside"] == pytest.approx(0.8, abs=0.03)
    assert rows["nobody tuned"]["e2e"]["unseen"] < 0.2  # no other laboratory is like it
    assert rows["experts"]["e2e"]["unseen"] == 1.0
    assert rows["nobody tuned"]["errors"]["e2e"]["log_median"] == pytest.approx(-0.4, abs=0.03)


def test_terms_are_not_fitted_to_the_laboratory_that_is_left_out() -> None:
    both = Laboratories.of(cells_of("experts") + cells_of("makers", slower=1.0), ())
    makers = both.beyond("makers")
    assert makers is not None
    assert makers.inside("e2e") == 0.0
    assert both.beyond("makers", without="experts") is None  # no terms are left


def test_coverage_is_that_of_laboratories_left_out_of_the_widening_and_resampled_whole() -> None:
    found = laboratories(cells_of("experts") + cells_of("makers"), cells_of("nobody tuned", slower=0.4), KEPT)
    coverage = found["coverage"]["e2e"]
    assert coverage["value"] == pytest.approx(np.mean([row["e2e"]["unseen"] for row in found["left_out"]]), abs=2e-3)
    assert coverage["low"] < 0.2 < coverage["value"] < coverage["high"] == 1.0


def test_one_laboratory_says_nothing_of_another() -> None:
    assert laboratories(cells_of("experts"), (), KEPT) == {}


def test_a_laboratory_none_of_whose_servers_has_bars_is_listed_with_its_errors_alone() -> None:
    strange = [replace(cell, case=replace(cell.case, precision="int4")) for cell in cells_of("strange")]
    found = laboratories(cells_of("experts"), strange, KEPT)
    assert [(row["laboratory"], row["with_bars"]) for row in found["left_out"]] == [("experts", 0), ("strange", 0)]
    assert found["wider"][FEW]["e2e"] == {"low": 1.0, "high": 1.0, "of": {"low": "", "high": ""}}
    assert found["coverage"] == {}


def test_a_version_that_recordings_do_not_state_is_the_laboratorys() -> None:
    (cell,) = named([replace(cells_of("")[0], case=replace(CASE, version=""))], "gpt-oss recordings")
    assert (cell.laboratory, cell.case.version) == ("gpt-oss recordings", described()["gpt-oss recordings"]["version"])
    assert named([cells_of("")[0]], "gpt-oss recordings")[0].case.version == "1"


def write(path: Path, laboratory: str, ratio: float) -> Path:
    rows = [
        ROW
        | {"laboratory": laboratory, "tp": str(tp), "concurrency": str(c), "isl": str(1000 + c)}
        | dict.fromkeys(("tpot_ratio", "ttft_ratio", "e2e_ratio"), str(ratio * (1 + 0.01 * (c % 3))))
        for tp in range(1, 13)
        for c in (4, 8, 16)
    ]
    if not laboratory:
        rows.append(ROW | {"e2e_ratio": ""})  # kept and not answered
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*HEAD, "laboratory"])
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_the_command_widens_bars_by_the_laboratories_it_is_given(tmp_path: Path) -> None:
    ours, theirs = write(tmp_path / "ours.csv", "InferenceX", 1.0), write(tmp_path / "theirs.csv", "", 0.5)
    out = tmp_path / "f.json"
    asked = ["calibrate", "intervals", str(ours), "--out", str(out), "--date", "2026-01-01"]
    found = CliRunner().invoke(app, [*asked, "--laboratory", f"gpustack={theirs}"])
    assert found.exit_code == 0, found.output
    assert "gpustack left out: 36 of 36 results have bars, inside ttft 100 %" in found.output
    assert "E2E simulated -50 % in the median" in found.output
    document = json.loads(out.read_text())
    assert document["laboratories"]["wider"][FEW]["tpot"]["of"] == {"low": "", "high": "gpustack"}
    rows = document["laboratories"]["left_out"]
    assert [(row["laboratory"], row["kept"], row["answered"]) for row in rows] == [
        ("gpustack", 37, 36),
        ("InferenceX", 36, 36),
    ]
    assert Fitted(document).unseen(CASE) is not None
    bad = CliRunner().invoke(app, [*asked, "--laboratory", str(theirs)])
    assert isinstance(bad.exception, UserError)
    assert "must be NAME=SCORE" in str(bad.exception)


def test_bursts_widen_the_bars_of_bursts_alone() -> None:
    """Results at 200 clients say nothing about a few, whose bars the other laboratories widen."""
    slow = [replace(cell, case=replace(cell.case, in_flight=200.0)) for cell in cells_of("bursts", slower=0.4)]
    found = laboratories(cells_of("experts") + cells_of("makers"), slow, KEPT)
    few, many = (found["wider"][crowd]["e2e"] for crowd in CROWDS)
    assert few["high"] < 1.5 < many["high"]
    assert many["of"]["high"] == "bursts"
