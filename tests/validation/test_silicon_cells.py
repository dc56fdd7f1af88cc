"""Measured cells of the installed aiconfigurator-core: the screen finds known contradictions, a small part is met.

The package is the extra `silicon`; nothing of it is in the project. Its part that nothing was fitted to was not used
to choose anything, so bounds here are wide: they notice a break, they claim nothing."""

from __future__ import annotations

import pytest

from servesim.experiments.accuracy.cells import package_folder, sample_file
from servesim.experiments.accuracy.reading import read
from servesim.experiments.accuracy.screen import screen
from servesim.experiments.accuracy.study import accuracy

pytestmark = pytest.mark.skipif(package_folder() is None, reason="the extra silicon (aiconfigurator-core) is not here")
CORE = ["openai/gpt-oss-120b", "meta-llama/Llama-3.1-70B", "Qwen/Qwen3-32B"]


def test_the_screen_leaves_most_cells_and_finds_what_is_known_to_be_wrong() -> None:
    cells = read([sample_file()])
    rules = screen(cells)
    assert len(cells) == 5221
    assert 0.5 < rules.count("") / len(cells) < 0.8
    out_of_line = [
        rule
        for cell, rule in zip(cells, rules, strict=True)
        if (cell.engine, cell.model, cell.gpu, cell.tp) == ("vllm", "openai/gpt-oss-120b", "h100_sxm", 4)
        and (cell.isl, cell.osl, cell.concurrency) == (1024, 1024, 32)
    ]
    assert "falls with concurrency" in out_of_line


def test_dense_models_and_gpt_oss_on_vllm_are_met() -> None:
    only = {"engine": ["vllm"], "model": CORE, "gpu": ["h100_sxm", "h200_sxm"], "concurrency": ["4", "8", "16"]}
    scored, document = accuracy(only=only, limit=12)
    whole = document["scores"][0]
    assert whole["answered"] == whole["cells"] >= 8, [one.answer.reason for one in scored]
    assert whole["over_cells"]["tpot"]["median"]["value"] < 0.15
    assert whole["over_cells"]["ttft"]["median"]["value"] < 0.5
