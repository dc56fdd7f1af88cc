"""Ratios of two cases: what they differ in decides which measured pairs speak for them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from servesim.intervals.case import Case
from servesim.intervals.fitted import Fitted
from servesim.intervals.pairs import Spread, kind_of_pair, pair_features, spread

CASE = Case("vllm", "0.18.0", "llama-3.1-70b", "h200", "fp8", 4, 1, 20.0, 1000.0, 120.0, 12.0, 0.02)
TERMS = {"all:": [-3.0, -2.0, -1.0], "pair: size": [0.5, 0.0, 0.0], "load: 9-32": [0.25, 0.0, 0.0]}
REACHES = dict.fromkeys(("ttft", "tpot", "e2e"), [0.1 * i for i in range(1, 9)] + [1.2, 2.0])
DOCUMENT = {
    "known": {
        "engine": ["vllm", "sglang"],
        "precision": ["fp8"],
        "gpu": ["h200"],
        "model": ["llama-3.1-70b"],
        "version": ["vllm 0.18.0"],
    },
    "pairs": {
        "kinds": {"size": 40, "engine": 9},
        "folds": {
            "deployment": {"terms": TERMS, "quantile": {"ttft": 2.0, "tpot": 1.5, "e2e": 1.0}, "levels": REACHES},
            "model": {"terms": TERMS, "quantile": {"ttft": 4.0, "tpot": 3.0, "e2e": 2.0}, "levels": REACHES},
        },
    },
}


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({}, ""),
        ({"in_flight": 99.0}, ""),
        ({"tp": 8}, "size"),
        ({"ep": 4}, "size"),
        ({"precision": "bf16"}, "precision"),
        ({"version": "0.19.0"}, "version"),
        ({"engine": "sglang", "version": "0.5.9"}, "engine"),
    ],
)
def test_a_pair_is_of_what_it_differs_in(changed: dict[str, object], kind: str) -> None:
    assert kind_of_pair(CASE, replace(CASE, **changed)) == (kind, "")  # type: ignore[arg-type]


def test_pairs_that_differ_in_several_things_get_words() -> None:
    assert kind_of_pair(CASE, replace(CASE, tp=8, precision="bf16"))[1].startswith(
        "no measured pairs differ in both precision"
    )
    assert "different models or GPUs" in kind_of_pair(CASE, replace(CASE, gpu="h100"))[1]


def test_features_do_not_depend_on_which_comes_first() -> None:
    other = replace(CASE, engine="sglang", ttft_ms=50.0, in_flight=200.0)
    assert list(pair_features("engine", CASE, other)) == list(pair_features("engine", other, CASE))


def test_a_spread_is_the_quantile_in_units_of_the_scale() -> None:
    found = spread(Fitted(DOCUMENT), CASE, replace(CASE, tp=8), "ttft")
    assert isinstance(found, Spread)
    assert found.factor == pytest.approx(math.exp(2.0 * math.exp(-2.25)))
    assert "servers held out" in found.says


def test_a_model_or_version_nobody_measured_is_spoken_for_by_left_out_models() -> None:
    found = spread(Fitted(DOCUMENT), replace(CASE, model="m"), replace(CASE, model="m", tp=8), "tpot")
    assert isinstance(found, Spread)
    assert found.factor == pytest.approx(math.exp(3.0 * math.exp(-2.0)))
    assert "models held out" in found.says


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, "no two measured servers differ only in this"),
        ({"version": "0.19.0"}, "too few pairs of two versions"),
        ({"precision": "int4"}, "no server with precision int4"),
    ],
)
def test_pairs_like_none_measured_get_words(changed: dict[str, object], words: str) -> None:
    found = spread(Fitted(DOCUMENT), CASE, replace(CASE, **changed), "ttft")  # type: ignore[arg-type]
    assert isinstance(found, str)
    assert words in found


def test_the_share_of_pairs_beyond_a_factor_is_half_of_those_beyond_its_size() -> None:
    one = Spread("size", math.exp(0.8), "", (*(math.exp(0.1 * i) for i in range(1, 9)), math.exp(1.2), math.exp(2.0)))
    assert one.beyond(1.0) == pytest.approx(0.5)
    assert one.beyond(one.factor) == pytest.approx(0.1)  # eight of ten inside, a tenth beyond either end
    assert one.beyond(math.exp(0.15)) == pytest.approx((1 - 0.15) / 2)
    assert one.beyond(math.exp(9)) == pytest.approx(0.025)  # no more is known


def test_a_spread_has_its_factor_among_those_by_level() -> None:
    found = spread(Fitted(DOCUMENT), CASE, replace(CASE, tp=8), "e2e")
    assert isinstance(found, Spread)
    assert found.factor == pytest.approx(math.exp(math.exp(-1.0)))
    assert found.by_level[7] == pytest.approx(math.exp(0.8 * math.exp(-1.0)))


def test_what_laboratories_have_in_common_cancels_in_a_ratio() -> None:
    wider = {"wider": {CASE.crowd: {metric: {"low": 2.0, "high": 3.0} for metric in ("ttft", "tpot", "e2e")}}}
    other = replace(CASE, tp=8)
    widened, plain = (
        spread(Fitted(document), CASE, other, "e2e") for document in ({**DOCUMENT, "laboratories": wider}, DOCUMENT)
    )
    assert isinstance(widened, Spread)
    assert widened == plain
