"""`servesim worth`: the price within the SLO with a thing and without."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

import servesim
from servesim import UserError
from servesim.experiments.worth import Feature, _crossing, feature, worth
from servesim.experiments.worth_words import error_words, needed, needs, sentence, usd_range
from servesim.run.scenario import Scenario

WORKLOAD: dict[str, Any] = {
    "trace": "synth:rate=1,prompt=600,output=20",
    "requests": 40,
    "model": "llama-3.2-1b",
    "slo": "ttft:40",
    "jobs": 1,
    "replicates": 3,
    "tolerance": 0.1,
    "intervals": False,
}
APART = pytest.mark.feature("handoff")
SERVER: dict[str, Any] = {"trace": "synth:rate=1,prompt=8,output=2", "model": "llama-3.2-1b", "gpu": "h100"}


@pytest.mark.parametrize(
    ("name", "more", "found"),
    [
        ("prefix-caching", {}, ((), ("kv=paged",))),
        ("prefix-caching", {"kv": "paged"}, (("kv=prefix-hash",), ("kv=paged",))),
        ("tp", {}, (("tp=2",), ("tp=1",))),
        ("tp", {"tp": 4}, ((), ("tp=1",))),
        ("speculation", {"speculation": "ngram"}, ((), ("speculation=none", "acceptance=null"))),
        ("tp=8", {"tp": 2}, (("tp=8",), ())),
        ("max_num_seqs=4", {}, (("max_num_seqs=4",), ())),
        ("fp8", {}, (("dtype=fp8",), ("dtype=bf16",))),
        pytest.param("disaggregation", {"pd": "2x1:1x2"}, ((), ("pd=null", "replicas=4")), marks=APART),
        pytest.param(
            "disaggregation",
            {"pd": "2x1:1x2", "tp": 2, "handoff": "trtllm"},
            ((), ("pd=null", "handoff=null", "replicas=2")),
            marks=APART,
        ),
    ],
)
def test_a_name_stands_for_settings_with_it_and_without(name: str, more: dict[str, Any], found: Any) -> None:
    assert feature(name, SERVER | more) == Feature(name, *found)


@pytest.mark.parametrize(
    ("of", "more", "line"),
    [
        ("fp9", {}, "of: 'fp9' is unknown (did you mean \"fp8\"?)"),
        ([], {}, "of: specify the change to evaluate (prefix-caching"),
        (["tp", "tp"], {}, "of: tp is specified twice"),
        ("speculation", {}, "the scenario has no speculation. Add it, for example with --speculation eagle3."),
        ("disaggregation", {}, "Define separate pools, for example with --pd 1x1:1x1."),
        pytest.param(
            "disaggregation",
            {"pd": "1x1:1x2", "tp": 2},
            "the 3 GPUs of pd=1x1:1x2 do not divide into whole replicas with tp=2",
            marks=APART,
        ),
        ("tp=1", {}, "of: tp=1 has no effect: the scenario already has it"),
        (
            "tp=2",
            {"kv": ["paged", "prefix-hash"]},
            "worth: specify only one deployment, because worth compares it with and without the feature; kv has "
            "several values",
        ),
        ("block_sise=2", {}, "unknown setting"),
        ("fp8", {"slo": {}}, "capacity: specify an SLO"),
        ("fp8", {"attainment": 2.0}, "attainment is 2 but must be above 0 and at most 1"),
    ],
)
def test_what_cannot_be_asked_gets_one_line(of: Any, more: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError, match=re.escape(line)) as error:
        worth(**WORKLOAD | more, of=of, gpu="h100")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("of", "more"),
    [
        ("prefix-caching", {}),
        (["fp8-kv", "prefix-caching"], {}),
        ("prefix-caching", {"kv": "paged"}),
        pytest.param("offload", {"offload": "cpu=1GiB"}, marks=pytest.mark.feature("offload")),
        ("kv=prefix-radix", {"kv": "paged"}),
        ("kv=prefix-hash", {"kv": "paged"}),
    ],
)
def test_what_prompts_share_is_not_asked_of_a_trace_that_does_not_tell(of: Any, more: dict[str, Any]) -> None:
    with pytest.raises(
        UserError,
        match=r"cannot be evaluated: its value depends on the content that prompts share, which trace .* --shape",
    ):
        worth(**WORKLOAD | more, of=of, gpu="h100")


def test_it_is_asked_where_the_question_says_what_is_shared() -> None:
    shared = {"trace": "synth:rate=1,prompt=6000,output=2", "shape": "share:tokens=5900", "slo": "ttft:1000"}
    document = worth(**WORKLOAD | shared, of="prefix-caching", gpu="h100").attrs["document"]
    assert document["worth"][0]["gain"] > 0.05


@pytest.fixture(scope="module")
def document() -> Any:
    return worth(**WORKLOAD, gpu="h100", of="tp=2,max_num_seqs=1").attrs["document"]


def test_the_gain_is_one_less_the_ratio_of_prices_for_a_request(document: Any) -> None:
    rows = {row["label"]: row for row in document["rows"]}
    assert list(rows) == ["without", "tp=2", "max_num_seqs=1", "tp=2 + max_num_seqs=1"]
    for one in document["worth"]:
        price, other = (rows[name]["usd_per_hour"] / rows[name]["rate"] for name in (one["of"], "without"))
        assert one["price_ratio"] == price / other
        assert one["gain"] == 1 - one["price_ratio"]
        if one["low"] is not None:
            assert one["low"] < one["gain"] < one["high"]
        assert one["model_error"] is None
    tp, slots, both = document["worth"]
    assert rows["tp=2"]["usd_per_hour"] == 2 * rows["without"]["usd_per_hour"]
    assert slots["gain"] < 0 < slots["price_ratio"]  # one request at once carries less
    assert both["with"] == ["tp=2", "max_num_seqs=1"]
    assert tp["says_worth"].startswith(f"{document['answer'].split('; ')[0]}: ")


def test_rows_are_those_of_capacity(document: Any) -> None:
    [alone] = servesim.capacity(**WORKLOAD, gpu="h100").attrs["document"]["rows"]
    [row] = [row for row in document["rows"] if row["label"] == "without"]
    assert [row[key] for key in ("rate", "rate_low", "rate_high")] == [
        alone[key] for key in ("rate", "rate_low", "rate_high")
    ]


def test_with_a_rate_whole_replicas_are_compared() -> None:
    [one] = worth(**WORKLOAD, gpu="h100", rate=40, of="max_num_seqs=1").attrs["document"]["worth"]
    assert one["rate"] == [40, 40]
    assert one["usd_per_hour"][0] > one["usd_per_hour"][1]
    assert one["says"].startswith("the number of replicas is a whole number")
    assert "more: $" in one["says_worth"]


def test_what_carries_nothing_is_said_so() -> None:
    frame = worth(**WORKLOAD | {"slo": "tpot:0.5"}, gpu="h100", of="tp=2")
    [one] = frame.attrs["document"]["worth"]
    assert (one["gain"], one["low"], one["says"]) == (None, None, "one of the two deployments sustains no rate")
    assert one["says_worth"] == "tp=2: with it, no rate is sustained (never)."


@pytest.mark.parametrize(
    ("margins", "limit"),
    [
        ((0.1, 0.05, -0.05), 2 * math.sqrt(2)),
        ((0.1, 0.0, -0.05), 2.0),
        ((0.1, -0.3, 0.2), 2**0.25),
        ((-0.1, 0.0, -0.1), None),
        ((0.1, 0.1, 0.1), None),
    ],
)
def test_a_replicate_s_limit_lies_where_its_margin_crosses_zero(
    margins: tuple[float, ...], limit: float | None
) -> None:
    assert _crossing((1.0, 2.0, 4.0), margins) == (limit if limit is None else pytest.approx(limit))


GAIN: dict[str, Any] = {
    "of": "x",
    "price_ratio": 0.8,
    "gain": 0.2,
    "low": 0.1,
    "high": 0.25,
    "verdicts": ["carries", "carries"],
    "usd_per_hour": [3.0, 3.0],
    "rate": [5.0, 4.0],
    "model_error": {"low": None, "high": None, "level": 0.8, "says": "none: no pairs"},
    "usd_range": [(0.5, 0.7), (0.72, 0.9)],
    "needs": ["It needs a head."],
}


def test_sentences_by_hand() -> None:
    one = GAIN | {
        "of": "fp8",
        "model_error": {"low": -0.1, "high": None, "level": 0.8, "says": "from pairs"},
        "usd_range": [None, None],
        "needs": [],
    }
    assert sentence(one) == (
        "fp8 saves 20 % [10, 25] per request: 5 requests/s at $3.00/h with it, 4 at $3.00/h without it."
    )
    assert error_words(one).startswith("fp8: the gain is at least -10 % (80 % interval from pairs")
    bars = {"low": None, "high": 0.3, "level": 0.8, "says": "from pairs"}
    assert error_words(one | {"model_error": bars}).startswith("fp8: the gain is at most 30 % (80 %")
    assert error_words(one | {"model_error": None}) == ""
    unknown = {"low": None, "high": None, "level": 0.8, "says": "none: no pairs"}
    assert error_words(one | {"model_error": unknown}).endswith("is not known: no pairs")


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"low": -0.03}, "over the replicates, the gain is -3 to 25 %"),
        ({"model_error": {"low": -0.1, "high": 0.3}}, "given the model's error, the gain is -10 to 30 %"),
        ({"usd_range": [(0.5, 0.8), (0.72, 0.9)]}, "their price intervals overlap"),
    ],
)
def test_a_gain_within_an_interval_is_undecided(other: dict[str, Any], why: str) -> None:
    said = sentence(GAIN | other)
    assert said.startswith("x: undecided (")
    assert why in said
    assert "; as simulated it saves 20 %" in said


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"model_error": None, "usd_range": [(0.5, 0.8), (0.72, 0.9)]},
        {"model_error": {"low": 0.1, "high": 0.3}, "usd_range": [(0.5, 0.8), (0.72, 0.9)]},  # measured pairs decide
        {"usd_range": [None, (0.1, 9.0)]},
    ],
)
def test_a_gain_outside_its_intervals_is_told_with_what_it_needs(other: dict[str, Any]) -> None:
    assert sentence(GAIN | other).startswith("x saves 20 %")
    assert needed([GAIN | other, GAIN | other]) == ["It needs a head."]


def test_what_costs_more_needs_nothing() -> None:
    assert needed([GAIN | {"gain": -0.2, "low": -0.3, "high": -0.1}, GAIN | {"gain": None}]) == []


def test_the_range_of_a_price_is_that_of_its_rate_or_gpus() -> None:
    bars = {"low": 2.0, "high": 8.0}
    row = {"usd_per_hour": 12.0, "rate": 4.0, "by": "rate", "model_error": bars}
    known = Scenario.of({"trace": "synth:rate=1", "model": "llama-3.2-1b", "gpu": "h100", "price": "h100=3"})
    assert usd_range(row, known) == (1.5, 6.0)
    assert usd_range(row | {"by": "replicas", "gpus": 4}, known) == (1.5, 6.0)  # $3/h a GPU: $6/h and $24/h for 4/s
    assert usd_range(row | {"model_error": {"low": None, "high": 8.0}}, known) is None


def test_each_end_of_a_range_of_gpus_pays_for_the_reserved_ones_and_those_above() -> None:
    """Six GPUs cost what the eight reserved ones do, $15.2, and so do two; ten cost $21.18."""
    known = Scenario.of({"trace": "synth:rate=1", "model": "llama-3.2-1b", "gpu": "h100", "price": "h100=8@1.9+2.99"})
    row = {"usd_per_hour": 15.2, "rate": 4.0, "by": "replicas", "gpus": 6, "model_error": {"low": 2, "high": 10}}
    assert usd_range(row, known) == pytest.approx((15.2 / 4, 21.18 / 4))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"kv_dtype": "fp8"}, ["Keys and values in FP8 change the model's answers"]),
        ({"dtype": "fp8"}, ["Weights in fp8 change the model's answers"]),
        ({"speculation": "eagle3"}, ["eagle3 needs a draft head that was trained for this model"]),
        ({"speculation": "ngram"}, []),
        ({"tp": 2}, []),
    ],
)
def test_what_no_simulation_sees_is_said(settings: dict[str, Any], says: list[str]) -> None:
    base = {"trace": "synth:n=1", "model": "llama-3.1-8b", "gpu": "h100"}
    found = [*needs(Scenario.of({**base, **settings}), Scenario.of(base))]
    assert len(found) == len(says)
    assert all(text in sentence for text, sentence in zip(says, found, strict=True))


@pytest.mark.slow
def test_the_model_s_error_of_a_ratio_is_that_of_measured_pairs() -> None:
    asked = {**WORKLOAD, "model": "llama-3.1-70b", "slo": "ttft:2000,tpot:50", "tp": 4, "intervals": True}
    [one] = worth(**asked, gpu="h200", of="tp=8", engine={"version": "0.12.0"}).attrs["document"]["worth"]
    bars = one["model_error"]
    assert bars["low"] < one["gain"] < bars["high"]
    assert bars["says"].startswith("from pairs of two sizes of one server")


def test_where_a_server_cannot_be_rerun_neither_a_row_nor_a_gain_has_bars() -> None:
    """A client's time-out does not stretch with the server: the answers for one deployment and for a pair agree."""
    asked = {**WORKLOAD, "model": "llama-3.1-8b", "gpu": "h100", "slo": "ttft:60", "replicates": 1, "intervals": True}
    document = worth(**asked, of="tp", clients={"timeout_s": 60}).attrs["document"]
    why = "clients.timeout_s does not scale with the server's times"
    (one,), (decision,) = document["worth"], document["model_error"]["decisions"]
    assert {row["model_error"]["says"] for row in document["rows"]} == {f"none: {why}"}
    assert (one["model_error"]["low"], one["model_error"]["high"], one["model_error"]["says"]) == (None, None, why)
    assert one["says_error"] == f"tp: the model's error is not known: {why}"
    assert decision["says"].endswith(why)
