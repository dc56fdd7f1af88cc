"""The canvases compute what the simulator does, and stay within their window."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from servesim.cost.roofline import decode_step, prefill_step
from servesim.cost.work import step_work
from servesim.hardware import Gpu, ModelSpec
from servesim.reports.canvases import canvases, plain_models
from servesim.reports.canvases.page import canvases_page
from tests.support.pages import assert_sound, script_of
from tests.unit.reports.test_browser import CHROMIUM, opened

in_browser = pytest.mark.skipif(not CHROMIUM, reason="no Chromium on this machine: pages are not opened in a browser")
SCRIPT = script_of("page", "zoom", "sliders", "canvases/formulas", "canvases/chart", "canvases/controls")


@pytest.mark.parametrize("name", plain_models())
def test_work_of_steps_follows_from_a_few_coefficients(name: str) -> None:
    model, found = ModelSpec.load(name), plain_models()[name]
    for sequences, context in ((1, 1), (7, 300), (256, 4096)):
        asked = step_work(model, decode_step(sequences, context))
        for whole, (constant, per_sequence, per_token) in zip(asked, found["decode"].values(), strict=True):
            assert constant + per_sequence * sequences + per_token * sequences * context == pytest.approx(whole)
    for prompt in (1, 100, 9000):
        asked = step_work(model, prefill_step(prompt))
        for whole, (constant, slope, square) in zip(asked, found["prefill"].values(), strict=True):
            assert constant + slope * prompt + square * prompt**2 == pytest.approx(whole)


def test_models_whose_layers_differ_are_no_choice() -> None:
    assert "llama-3.1-8b" in plain_models()
    assert not {"mixtral-8x7b", "deepseek-v3", "gemma-3-4b", "qwen3.5-27b", "mistral-7b"} & set(plain_models())


def test_a_model_that_is_no_choice_leaves_the_canvases_at_another() -> None:
    for model, first in (("qwen3-14b", "qwen3-14b"), ("deepseek-v3", "llama-3.1-8b")):
        kv = canvases(model, "h200")[0]
        assert {c.key: c.value for c in kv.controls}["model"] == first


def test_the_page_needs_nothing_but_itself() -> None:
    assert_sound(canvases_page("llama-3.1-8b", "h100").html(), 0, SCRIPT)


def tiles(folder: Path, address: str = "") -> dict[str, list[float]]:
    """The numbers of each canvas's tiles on the page that opens at this address."""
    page = folder / "canvases.html"
    page.write_text(canvases_page("llama-3.1-8b", "h100").html())
    document, console = opened(page, address)
    assert console == []
    return {
        name: [float(value) for value in re.findall(r'data-value="([^"]*)"', part)]
        for name, part in re.findall(r'data-canvas="(\w+)">(.*?)</section>', document, flags=re.S)
    }


@in_browser
@pytest.mark.slow
def test_the_page_computes_what_the_simulator_does(tmp_path: Path) -> None:
    found = tiles(tmp_path)
    model, gpu = ModelSpec.load("llama-3.1-8b"), Gpu.load("h100")
    token = model.kv_bytes_per_token()
    room = 0.9 * gpu.memory_bytes - model.weight_bytes("bf16")
    assert found["kv"] == [token, 4096 * token, 16 * 4096 * token, room // (4096 * token)]
    decode, prefill = (
        max(flops / gpu.flops["bf16"], data / gpu.bandwidth)
        for flops, data in (step_work(model, decode_step(16, 1024)), step_work(model, prefill_step(1024)))
    )
    assert found["roofline"] == pytest.approx([decode, 16 / decode, prefill, gpu.flops["bf16"] / gpu.bandwidth])


@in_browser
@pytest.mark.slow
def test_the_address_holds_the_values(tmp_path: Path) -> None:
    weights = [0.5, 1.5, 2.5, -3.0, 7.0, 0.1, -0.2, 0.25]
    found = tiles(
        tmp_path,
        "#speculation.alpha=0.5&speculation.k=3&speculation.c=0.1&attention.tokens=1024&attention.heads=2"
        "&attention.head_dim=64&quantization.bits=4&quantization.group=5&quantization.weights="
        + ",".join(map(str, weights)),
    )
    speedups = [(2 - 0.5**k) / (1 + 0.1 * k) for k in range(17)]  # (1 - .5^(k + 1)) / .5
    assert found["speculation"] == pytest.approx([1.875, 1.875 / 1.3, int(np.argmax(speedups)), max(speedups)])
    assert found["attention"] == [2 * 2 * 1024**2, 8 * 2 * 1024 * 64, 1 + 1024 / (4 * 64), 4 * 2 * 1024**2 * 64]
    # scale 1 for the first five (halves to even: 0, 2, 2), and 0.25 / 7 for the last three
    fine = np.array(weights[5:]) / (0.25 / 7)
    errors = [-0.5, 0.5, -0.5, 0, 0, *((np.round(fine) - fine) * 0.25 / 7)]
    assert found["quantization"] == pytest.approx(
        [0.5, float(np.sqrt(np.mean(np.square(errors)))), 1.0, 4 + 16 / 5], abs=1e-12
    )


@in_browser
@pytest.mark.slow
def test_a_value_beyond_its_slider_is_a_line_in_place_of_the_answer(tmp_path: Path) -> None:
    page = tmp_path / "canvases.html"
    page.write_text(canvases_page("llama-3.1-8b", "h100").html())
    document, _ = opened(page, "#kv.layers=0&quantization.weights=a")
    said = re.findall(r'<p class="alert" role="alert">([^<]*)<', document)
    assert [unescape(line) for line in said] == [
        "Layers: a number from 1 to 130",
        "Weights: numbers separated by commas, such as 0.12, -0.5",
    ]
