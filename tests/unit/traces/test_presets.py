"""Presets and their fitting, without the originals."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from servesim.errors import UserError
from servesim.traces import load_preset, open_trace, preset_names, save_trace, synthesize
from servesim.traces.inspect import dispersion, prefix_hits
from servesim.traces.presets import Fit
from servesim.traces.presets.fit import fit_trace, main
from servesim.traces.presets.tree import _Growing
from servesim.workload.trace import Content, Trace


def test_preset_data_is_small_and_says_where_it_comes_from() -> None:
    sizes = []
    for name in preset_names():
        text = (files("servesim.traces.presets") / f"{name}.json").read_text()
        sizes.append(len(text))
        original = json.loads(text)["original"]
        assert all(original[key] for key in ("file", "sha256", "source", "licence", "citation"))
    assert sum(sizes) < 300_000


def test_a_preset_names_its_original_and_refuses_no_requests() -> None:
    trace = load_preset("azure-code-2023", 10, seed=4)
    assert trace.name == "preset:azure-code-2023"
    assert "Patel" in trace.notes[0]
    assert "seed 4" in trace.notes[0]
    with pytest.raises(UserError, match="requests is 0"):
        load_preset("azure-code-2023", 0)


def test_every_conversation_prompt_begins_with_the_system_prompt_and_fills_its_length() -> None:
    trace = load_preset("mooncake-conversation", 3000)
    assert trace.content is not None
    for row, length in enumerate(trace.prompt_len.tolist()):
        runs = trace.content.runs(row)
        assert runs[0][0] == 0
        assert sum(n for _, n in runs) == length


def test_a_later_turn_shares_exactly_the_blocks_it_was_meant_to() -> None:
    grown = _Growing(size=10)
    grown.begin(0, 35)  # four blocks, the last partial
    grown.begin(1, 35)
    grown.extend(2, 52, new_blocks=3, target=1, branch=False)  # six blocks, three shared: extends row 1, not row 0
    grown.extend(3, 52, new_blocks=3, target=1, branch=False)  # row 1 is no leaf any more: row 0
    grown.extend(4, 33, new_blocks=0, target=0, branch=False)  # sent again: the nearest leaf of four blocks is gone
    grown.extend(5, 58, new_blocks=0, target=2, branch=False)  # row 2 word for word
    assert grown.runs[2] == [(0, 10), (2, 20), (3, 22)]
    assert grown.runs[3] == [(0, 10), (1, 20), (4, 22)]
    assert grown.runs[5] == grown.runs[2]
    assert grown.prompt == [35, 35, 52, 52, 33, 52]
    assert grown.runs[4][0] == (0, 10)


@pytest.mark.medium
def test_a_fit_of_a_bursty_trace_gives_back_its_statistics() -> None:
    spec = "arrivals=gamma(cv=2),rate=10,prompt=lognormal(p50=500,p95=2000),output=uniform(5,50)"
    trace = synthesize(spec, 4000, seed=9)
    twin = Fit.from_json({"name": "t", "original": {"file": "f"}, **fit_trace(trace)}).draw(seed=1)
    assert len(twin) == 4000
    for window_s in (1, 10):
        assert dispersion(twin.arrival_ns, window_s) == pytest.approx(dispersion(trace.arrival_ns, window_s), rel=0.25)
    for level in (10, 50, 90):
        assert np.percentile(twin.prompt_len, level) == pytest.approx(np.percentile(trace.prompt_len, level), rel=0.05)
        assert np.percentile(twin.output_len, level) == pytest.approx(np.percentile(trace.output_len, level), abs=2)


@pytest.mark.medium
def test_a_fit_of_a_conversation_gives_back_its_hit_rate(tmp_path: Path) -> None:
    original = open_trace("preset:mooncake-conversation", requests=3000, seed=8)
    save_trace(original, tmp_path / "original.jsonl", "mooncake")
    code = main([str(tmp_path / "original.jsonl"), "--name", "t", "--out", str(tmp_path / "t.json")])
    assert code == 0
    twin = Fit.from_json(json.loads((tmp_path / "t.json").read_text())).draw(seed=1)
    have, want = prefix_hits(twin, 512), prefix_hits(original, 512)
    assert have is not None
    assert want is not None
    assert have.token_hit_rate == pytest.approx(want.token_hit_rate, abs=0.03)


def test_what_cannot_be_fitted_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = Content(np.array([0, 1]), np.array([1]), np.array([5]))
    with pytest.raises(UserError, match="a fit needs at least 200 requests"):
        fit_trace(Trace.from_lengths("t", [0], [5], [1], content=content))
    assert main([str(tmp_path / "none.csv"), "--name", "t", "--out", str(tmp_path / "t.json")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
