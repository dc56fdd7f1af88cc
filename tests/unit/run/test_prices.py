"""Prices by GPU, as text, mapping or file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import servesim
from servesim import UserError
from servesim.hardware import Gpu
from servesim.run.sections import price_of, prices_of

SERVER: dict[str, Any] = {"trace": "synth:rate=20,prompt=300,output=9", "requests": 20, "model": "llama-3.2-1b"}


def test_prices_come_as_text_mapping_or_file(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("h100: 2.2\nh200: 3.1\n")
    (tmp_path / "p.csv").write_text("gpu,usd per hour\nh100, 2.2\nh200,3.1\n")
    (tmp_path / "bare.csv").write_text("h100,2.2\nh200,3.1\n")
    sources = ["h100=2.2,h200=3.1", {"h100": "2.2", "h200": 3.1}]
    sources += [str(tmp_path / name) for name in ("p.yaml", "p.csv", "bare.csv")]
    assert all(prices_of(source) == {"h100": 2.2, "h200": 3.1} for source in sources)


@pytest.mark.parametrize(
    "wrong", ["h100", "h100=x", "h100=-1", "h100=nan", 3, {"h100": True}, {"h100": 10**400}, "missing.csv"]
)
def test_prices_that_are_none_are_refused(wrong: Any) -> None:
    with pytest.raises(UserError):
        prices_of(wrong)


def test_the_price_of_all_gpus_goes_before_those_by_name_before_the_data_sheet() -> None:
    gpu = Gpu.load("h100")
    assert price_of(gpu, {"h100": 2.2}, 5.0) == 5.0
    assert price_of(gpu, {"h100": 2.2}, None) == 2.2
    assert price_of(gpu, {"h200": 3.1}, None) == gpu.usd_per_hour


def test_every_run_is_priced_by_its_gpu() -> None:
    for gpu, usd in (("h100", 2.2), ("h200", 3.1)):
        summary = servesim.simulate(**SERVER, gpu=gpu, price="h100=2.2,h200=3.1").summary
        assert summary["price"]["usd_per_gpu_hour"] == usd
        assert not any("price" in note for note in summary["warnings"])


def test_a_price_that_changes_nothing_is_noted() -> None:
    notes = servesim.simulate(**SERVER, gpu="h100", price="h200=3.1").summary["warnings"]
    said = "no price is specified for h100 (only for h200), so its data-sheet price of $3 per GPU-hour is used"
    assert f"{said}. Add the price to --price." in notes
    notes = servesim.simulate(**SERVER, gpu="h100", price="h100=3.1", usd_per_gpu_hour=2).summary["warnings"]
    assert "price of h100 has no effect: usd_per_gpu_hour=2 is specified. Remove one of them." in notes
