"""Servers with known delays are measured in short: what is reported of them is computed by hand."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from servesim.calibrate.bursts import MOST_TRIALS, _root, fit_bursts, replayed, write
from servesim.cli import app as cli
from servesim.cli.measure_short import _table, _words
from servesim.cost.host import HostTerms
from servesim.errors import UserError
from servesim.experiments.accuracy.cells import Cell
from servesim.experiments.accuracy.recipes import recipe
from servesim.experiments.measure import short
from servesim.experiments.measure.answers import Answer
from servesim.experiments.measure.short import Load, beside, cells_of, kind_of_host, per_request_ms
from servesim.experiments.measure.study import Measured, Measurement, Plan, measure
from servesim.experiments.measure.wire import Address
from servesim.run.error_bars import intervals
from servesim.run.simulate import simulate
from tests.support.stub_server import Stub, serving
from tests.support.virtual_time import in_virtual_time

SMALL = replace(
    short.SHORT,
    idle=(256,),
    output=64,
    idle_requests=2,
    bursts=((4, 128, 4), (4, 256, 32), (24, 128, 4), (24, 256, 32)),
)
LABELS = {"model": "Qwen/Qwen3-8B", "gpu": "h100", "tp": 1, "dtype": "bf16"}
SERVER = {"models": ("Qwen/Qwen3-8B",), "url": "http://stub:80"}


def measured(monkeypatch: pytest.MonkeyPatch, **delays: float) -> tuple[Measurement, list[Cell]]:
    stub = Stub(**SERVER, **delays)  # type: ignore[arg-type]
    found = in_virtual_time(monkeypatch, stub, measure(Address.parse(stub.url), SMALL))
    return found, cells_of(found, LABELS, "2026-11-26")


def loads(monkeypatch: pytest.MonkeyPatch, **delays: float) -> list[Load]:
    return beside(*measured(monkeypatch, **delays))


def servesim(patch: pytest.MonkeyPatch, *arguments: str) -> int:
    patch.setattr(short, "SHORT", SMALL)
    patch.setattr(sys, "argv", ["servesim", "measure", *arguments])
    return cli._guarded()


def test_a_server_that_takes_5_ms_a_request_one_after_another_is_reported_as_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 24 requests at once the last is handled after 120 ms, of 4 after 20."""
    found = per_request_ms(loads(monkeypatch, api_s=0.005, first_s=0.01, token_s=0.008))
    assert found is not None
    assert found[0] == pytest.approx(5.0, abs=1e-3)


def test_a_server_that_is_slow_in_one_thing_is_told_to_be_slow_in_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulated are 8 ms a step and about 8 ms a request in a burst: 100 of either is slow, 7.8 and 4 are not."""
    api = kind_of_host(loads(monkeypatch, api_s=0.1, token_s=0.0078))
    assert "slower at the API server" in api
    assert "slower in steps" not in api
    steps = kind_of_host(loads(monkeypatch, api_s=0.004, first_s=0.012, token_s=0.1))
    assert "slower in steps of one request" in steps
    assert "slower in steps of many" in steps
    assert "slower at the API server" not in steps


def test_ms_a_request_decide_on_the_api_server_where_the_mean_ttft_is_within_its_bar(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """22 ms a request one after another are 11 in the mean over a burst; requests that share a loop are all late."""
    found = loads(monkeypatch, api_s=0.022, first_s=0.012, token_s=0.0078)
    assert "slower at the API server" in kind_of_host(found)


def test_answers_in_one_piece_have_no_tpot_to_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    found = loads(monkeypatch, api_s=0.005, first_s=0.01, token_s=0.008)
    whole = [replace(load, measured=replace(load.simulated, tpot=0.0)) for load in found]
    assert all("tpot" not in load.judged for load in whole)
    assert "steps" not in kind_of_host(whole)
    assert len(_table(whole)) == len(_table(whole, whole)) == 1 + len(whole)


def test_a_server_that_is_as_simulated_is_like_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    found = loads(monkeypatch, api_s=0.005, first_s=0.01, token_s=0.008)
    same = [replace(load, measured=load.simulated) for load in found]
    assert "all times are within the error bars" in kind_of_host(same)
    late = replace(same[0], measured=replace(same[0].simulated, e2el=10 * same[0].simulated.e2el))
    assert kind_of_host([late, *same[1:]]).startswith("near")


def test_host_terms_that_made_the_times_are_found_again(tmp_path: Path) -> None:
    """A server is simulated that takes 20 ms a request at the API server, 2 ms more a step and .1 ms more for each
    request in one."""
    points = SMALL.points(None, None)[0]
    runs = [Measured(p, 1, [Answer(0, 1, 2, p.prompt, p.output, 1, p.output)] * p.requests) for p in points]
    cells = cells_of(Measurement(runs, {"engine": "vllm", "engine_version": "0.11.0"}), LABELS, "")
    base = HostTerms.load("vllm-0.12-h100")
    true = {"front_per_request": 20e6, "exposed": base.exposed + 2e6, "exposed_per_sampled": 1e5}
    path = tmp_path / "true.yaml"
    write(path, replace(base, **true))
    times = [replayed(cell, path) for cell in cells]
    cells = [replace(c, ttft_ms=t.ttft_ms or 0.0, tpot_ms=t.tpot_ms or 0.0) for c, t in zip(cells, times, strict=True)]
    found = fit_bursts(cells, base)
    for name, value in true.items():
        assert getattr(found, name) == pytest.approx(value, rel=0.05), name
    assert found.front_in < 1e6
    assert "burst-c24" in found.provenance["front_per_request"]
    assert (found.provenance["model"], found.provenance["gpu"]) == ("qwen3-8b", "h100")  # not its base's
    assert "note" in base.provenance
    assert "note" not in found.provenance


@pytest.mark.parametrize("base", ["vllm-0.12-h100", "vllm-0.12-greedy"])
def test_a_run_with_terms_fitted_to_its_server_counts_as_measured(base: str, tmp_path: Path) -> None:
    """The base for greedy requests has no engine, since no run chooses it by itself."""
    points = SMALL.points(None, None)[0]
    runs = [Measured(p, 1, [Answer(0, 10**7, 10**9, p.prompt, p.output, 1, p.output)] * p.requests) for p in points]
    cells = cells_of(Measurement(runs, {"engine": "vllm", "engine_version": "0.11.0"}), LABELS, "")
    terms = fit_bursts(cells, HostTerms.load(base))
    assert terms.engine == "vllm 0.11.0"
    assert terms.provenance["others"] == f"those of {base}"
    path = tmp_path / "host.yaml"
    write(path, terms)
    assert intervals(simulate(recipe(cells[0], {"host": str(path)}).settings).summary)["laboratory"] == "own"


def test_a_root_at_the_last_doubling_is_found() -> None:
    last = 2.0**MOST_TRIALS
    assert last / 2 < _root(lambda value: value / last - 0.75, 0.0, 1.0) < last


def test_no_root_names_the_largest_value_that_was_tried() -> None:
    """Tried are 2 ms and 12 doublings of them."""
    with pytest.raises(UserError, match="8,192 ms are too few"):
        _root(lambda value: -1.0, 1e6, 1e5)


def test_loads_that_are_slow_and_fast_in_one_place_are_said_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two bursts of long answers one has ten times the simulated TPOT, the other a tenth."""
    same = [replace(load, measured=load.simulated) for load in loads(monkeypatch, first_s=0.01, token_s=0.008)]
    for i, factor in ((2, 10.0), (4, 0.1)):
        same[i] = replace(same[i], measured=replace(same[i].measured, tpot=factor * same[i].measured.tpot))
    assert kind_of_host(same).endswith("fitted to: both slower and faster in steps of many")


def test_without_bursts_no_api_server_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [load for load in loads(monkeypatch, first_s=0.01, token_s=0.008) if load.run.point.kind == "idle"]
    lines = _words(found, HostTerms(), HostTerms(exposed=1e6))
    assert lines[1] == "Steps: +1.00 ms each and +0.0 us for each request in one"


def test_terms_need_a_load_that_shows_one() -> None:
    (point,) = Plan(idle=(), clients=(16,), saturated=0).points(None, None)[0]
    run = Measured(point, 1, [Answer(0, 1, 2, point.prompt, point.output, 1, point.output)] * point.requests)
    cells = cells_of(Measurement([run], {}), LABELS, "")
    with pytest.raises(UserError, match="neither up to 8 clients nor a burst of short prompts"):
        fit_bursts(cells, HostTerms())


@pytest.mark.medium
def test_ten_lines_and_a_file_of_host_terms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mine"
    with serving(Stub(models=("Qwen/Qwen3-8B",), first_s=0.02, token_s=0.002)) as stub:
        assert servesim(monkeypatch, stub.url, "--gpu", "h100", "--short", "--out", str(out)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 5 + 3
    assert lines[1].split()[:3] == ["one", "client", "256/32"]
    assert lines[5].split()[:4] == ["24", "at", "once", "256/32"]
    assert "ms a request in a burst" in lines[7]
    assert lines[8] == f"Next: servesim run --host {out / 'host.yaml'} ..., whose terms were fitted to these loads"
    assert HostTerms.load(out / "host.yaml").front_per_request >= 0
    assert {path.name for path in out.iterdir()} == {"cells.csv", "host.yaml", "runs", "server_config.json"}


@pytest.mark.parametrize(("fails", "shown"), [("loads", 1), ("fit", 9), ("fitted loads", 9)])
def test_a_fit_that_fails_leaves_the_measurements(
    fails: str, shown: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Loads are simulated once to be checked, once as measured, and once with the fitted terms. Shown are a table of
    six lines, the kind of host, its API server, and the failure."""
    calls = iter(["check", "loads", "fitted loads"])

    def beside_or_not(*arguments: Any) -> list[Load]:
        if next(calls) == fails:
            raise UserError("no way")
        return beside(*arguments)

    def fit(cells: Sequence[Cell], base: HostTerms) -> HostTerms:
        if fails == "fit":
            raise UserError("no way")
        return base

    monkeypatch.setattr(short, "beside", beside_or_not)
    monkeypatch.setattr("servesim.calibrate.bursts.fit_bursts", fit)
    out = tmp_path / "mine"
    with serving(Stub(models=("Qwen/Qwen3-8B",), first_s=0.02, token_s=0.002)) as stub:
        assert servesim(monkeypatch, stub.url, "--gpu", "h100", "--short", "--out", str(out)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == shown
    assert lines[-1].startswith("No host.yaml: no way (check --gpu, --tp")
    assert {path.name for path in out.iterdir()} == {"cells.csv", "runs", "server_config.json"}


@pytest.mark.parametrize(("wrong", "told"), [("500", "returned status 500"), ("closes", "the response was cut off")])
def test_a_server_that_takes_no_burst_is_one_line_and_nothing_is_written(
    wrong: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two probes, two requests of one client, bursts of 4 and 4; then it fails."""
    with serving(Stub(models=("Qwen/Qwen3-8B",), wrong=wrong, after=2 + 2 + 8)) as stub:
        assert servesim(monkeypatch, stub.url, "--gpu", "h100", "--short", "--out", str(tmp_path / "o")) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert f"24 requests at once: {stub.url}/v1/completions: " in line
    assert told in line
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_is_too_slow_for_the_time_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request takes .1 + 3.1 s, and .05 minutes are 3 s."""
    stub = Stub(**SERVER, first_s=0.1, token_s=0.1)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"the measurement did not finish within 0.05 minutes \(increase --minutes\)"):
        in_virtual_time(monkeypatch, stub, measure(Address.parse(stub.url), replace(SMALL, minutes=0.05)))


def test_no_loop_of_a_short_measurement_is_cut_to_a_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six requests of one client take 11 to 13 s of 18, and a fifth of 18 s is the share of a loop."""
    stub = Stub(**SERVER, first_s=0.5, token_s=0.05)  # type: ignore[arg-type]
    plan = replace(SMALL, idle_requests=6, minutes=0.3)
    found = in_virtual_time(monkeypatch, stub, measure(Address.parse(stub.url), plan))
    assert len(found.runs[0].answers) == 6


def test_a_model_that_cannot_be_simulated_is_known_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(Stub()) as stub:
        assert servesim(monkeypatch, stub.url, "--gpu", "h100", "--short", "--out", str(tmp_path / "o")) == 2
    assert "model stub/tiny: not bundled" in capsys.readouterr().err
    assert stub.seen == []
    assert list(tmp_path.iterdir()) == []


def test_an_option_that_would_change_nothing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = servesim(monkeypatch, "x", "--gpu", "h100", "--short", "--idle-requests", "4", "--out", str(tmp_path / "o"))
    assert code == 2
    assert "remove --idle-requests or --short" in capsys.readouterr().err
