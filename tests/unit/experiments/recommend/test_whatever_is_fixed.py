"""`servesim recommend` with whatever a user may fix: each feature, and drafts."""

from __future__ import annotations

import pytest

import servesim
from servesim import UserError
from tests.property.test_feature_pairs import FEATURES, SETTINGS
from tests.unit.experiments.recommend.test_recommend import QUESTION

ONE = {
    **QUESTION,
    "trace": "synth:rate=20,prompt=300,output=30",
    "gpu": "h200",
    "slo": "tpot:p99<20ms",
    "scheduler.max_num_batched_tokens": 2048,
    "replicates": 1,
    "max_replicas": 8,
    "by_formula": True,
    **({"offload": None} if "offload" in FEATURES else {}),
}
"""A question with two deployments, which differ in a flag."""
ONE |= {"scheduler.max_num_seqs": [8, 256]}
FIXED = {name: given for name, given in SETTINGS.items() if name in FEATURES}
FIXED |= {name: {"speculation": name} for name in ("eagle", "ngram")}
if "scaling" in FIXED:  # whose maximum is searched
    FIXED["scaling"] = {"scaler": "keda:target=2,min=1"}
QUICK = ("eagle", "scaling")
RATES = {"rate": {"rate": 5}, "no rate": {}}


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in FIXED]
)
def test_a_deployment_is_found_whatever_is_fixed_and_it_was_searched_for(
    name: str, rate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("servesim.experiments.recommend.question.FEWEST", 200)
    given = FIXED[name] | RATES[rate]
    question = {key: value for key, value in ONE.items() if key not in given}
    if name == "scaling" and rate == "no rate":
        with pytest.raises(UserError, match="specify a rate, because an autoscaler"):
            servesim.recommend(given, **question)
        return
    document = servesim.recommend(given, **question).attrs["document"]
    found = document["recommendation"]
    assert found is not None, document["answer"]
    assert found["search"]["screened"] >= 1
    assert found["first"]


@pytest.mark.slow
@pytest.mark.feature("scaling")
def test_an_autoscaler_is_searched_with_more_replicas_than_its_maximum_if_none_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A replica serves one request at a time here, about 28 a second, and KEDA's own maximum is 8 replicas."""
    monkeypatch.setattr("servesim.experiments.recommend.question.FEWEST", 200)
    asked = {**ONE, "scheduler.max_num_seqs": 1, "scheduler.max_num_batched_tokens": [2048, 8192], "max_replicas": 32}
    document = servesim.recommend(scaler="keda:target=1,min=1", rate=300, **asked).attrs["document"]
    assert document["recommendation"] is not None, document["answer"]
    assert document["recommendation"]["search"]["improved"] >= 1
    assert document["rows"][0]["replicas"] > 8
