"""Prices by GPU, as text, mapping or file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import servesim
from servesim import UserError
from servesim.experiments.axes import Variant
from servesim.experiments.recommend.aims import MostForBudget, PriceForRate, fleet_usd
from servesim.experiments.variants import price_of as usd_per_hour_of
from servesim.hardware import Gpu
from servesim.run.prices import Reserved, paid, price_of, prices_of

SERVER: dict[str, Any] = {"trace": "synth:rate=20,prompt=300,output=9", "requests": 20, "model": "llama-3.2-1b"}


def test_prices_come_as_text_mapping_or_file(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("h100: 2.2\nh200: 3.1\n")
    (tmp_path / "p.csv").write_text("gpu,usd per hour\nh100, 2.2\nh200,3.1\n")
    (tmp_path / "bare.csv").write_text("h100,2.2\nh200,3.1\n")
    sources = ["h100=2.2,h200=3.1", {"h100": "2.2", "h200": 3.1}]
    sources += [str(tmp_path / name) for name in ("p.yaml", "p.csv", "bare.csv")]
    assert all(prices_of(source) == {"h100": 2.2, "h200": 3.1} for source in sources)


TEXTS = ["h100", "h100=x", "h100=-1", "h100=nan", "missing.csv"]
RESERVED = ["h100=8@1.9", "h100=0@1.9+2.99", "h100=8@1.9+-1", "h100=8@x+2.99", "h100=1e7@1+2", "h100=9999999@1+2"]


@pytest.mark.parametrize("wrong", [*TEXTS, *RESERVED, 3, {"h100": True}, {"h100": 10**400}])
def test_prices_that_are_none_are_refused(wrong: Any) -> None:
    with pytest.raises(UserError) as caught:
        prices_of(wrong)
    assert "\n" not in str(caught.value)


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


EIGHT = {**SERVER, "gpu": "h100", "price": "h100=8@1.9+2.99"}


@pytest.mark.parametrize(("gpus", "usd"), [(1, 15.2), (6, 15.2), (8, 15.2), (9, 18.19), (10, 21.18)])
def test_reserved_gpus_are_paid_for_whether_used_or_not_and_others_on_demand(gpus: int, usd: float) -> None:
    """8 x $1.9 = $15.2; the tenth GPU is the second at $2.99."""
    assert price_of(Gpu.load("h100"), prices_of("h100=8@1.9+2.99"), None, gpus) * gpus == pytest.approx(usd)
    assert usd_per_hour_of({**EIGHT, "replicas": gpus})["usd_per_hour"] == pytest.approx(usd)


def test_a_run_of_ten_gpus_costs_eight_reserved_and_two_on_demand() -> None:
    run = servesim.simulate(**EIGHT, replicas=10).summary
    hours = run["price"]["gpu_hours"] / 10
    assert run["price"]["usd"] == pytest.approx(21.18 * hours)
    assert run["scenario"]["price"] == {"h100": "8@1.9+2.99"}
    assert not any("price" in note for note in run["warnings"])
    assert servesim.simulate(run["scenario"]).summary["price"] == run["price"]


def test_pools_share_reserved_gpus() -> None:
    """Two pools of five H100 are ten; another GPU has its own price."""
    pools = [{"name": "a", "replicas": 5}, {"name": "b", "replicas": 5}]
    assert usd_per_hour_of({**EIGHT, "pools": pools})["usd_per_hour"] == pytest.approx(21.18)
    pools[1]["gpu"] = "l40s"
    both = {**EIGHT, "price": "h100=8@1.9+2.99,l40s=1", "pools": pools}
    assert usd_per_hour_of(both)["usd_per_hour"] == pytest.approx(15.2 + 5)


def test_gpus_that_come_and_go_cost_the_reserved_ones_all_the_time() -> None:
    """From 0 to 10 h, two GPUs are reserved. One replica of two GPUs is up all the time, another from 4 to 7 h, a third
    from 6 to 12 h, of which 4 h count: 2 x 10 h at $1, and 2 x 3 + 2 x 4 on demand at $3."""
    ups = [(0, 10, 2), (4, 7, 2), (6, 12, 2)]
    assert paid(Reserved(2, 1.0, 3.0), ups, 0, 10) == 20 + 14 * 3
    assert paid(Reserved(8, 1.0, 3.0), ups, 0, 10) == 80
    assert paid(Reserved(2, 1.0, 3.0), [], 0, 10) == 20


def test_an_autoscaler_pays_for_reserved_gpus_that_are_down() -> None:
    """One replica is up of four that may be: four reserved GPUs cost four times as long as the run lasts."""
    scaled = {**SERVER, "gpu": "h100", "scaler": "hpa:min=1,max=4", "replicas": 1}
    plain = servesim.simulate(**scaled, price="h100=2").summary
    kept = servesim.simulate(**scaled, price="h100=4@2+5").summary
    seconds = max(one["up_s"] for one in plain["replicas"])
    assert plain["price"]["gpu_hours"] < 4 * seconds / 3600
    assert plain["price"]["usd"] == pytest.approx(2 * plain["price"]["gpu_hours"])
    assert kept["price"]["usd"] == pytest.approx(4 * 2 * seconds / 3600)


def test_aims_count_reserved_gpus_once() -> None:
    """Replicas of two GPUs: up to four for $15.2, five for $21.18, six for $27.16."""
    v = Variant("", {}, {**EIGHT, "tp": 2})
    assert [fleet_usd(v, n) for n in (1, 4, 5, 6)] == pytest.approx([15.2, 15.2, 21.18, 27.16])
    assert [MostForBudget(usd).replicas(v) for usd in (15.0, 15.2, 21.17, 21.18)] == [0, 4, 4, 5]
    aim = PriceForRate(10.0, 64)
    assert [aim.load(v, usd) for usd in (15.2, 15.3, 27.16, 27.2)] == [None, 4, 5, 6]
    assert aim.price(v, 5) == aim.bound(v, 2.0) == pytest.approx(21.18)
