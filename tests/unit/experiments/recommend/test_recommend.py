"""`servesim recommend`, from a question to its document."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import servesim
from servesim import UserError
from servesim.cli.tables import print_recommend
from servesim.contracts.feature import installed
from servesim.experiments.axes import Variant
from servesim.experiments.bounds import Work, optimistic_rate, too_long
from servesim.experiments.capacity import Terms, opened
from servesim.experiments.goals import goals_of
from servesim.experiments.objects import Objects
from servesim.experiments.recommend.aims import Headroom, MostForBudget, MostTraffic, PriceForRate, PricePerRequest
from servesim.experiments.recommend.lengths import Length, horizon_s, relaxation_s, work_of
from servesim.experiments.recommend.question import Question
from servesim.experiments.recommend.race import Entrant
from servesim.experiments.recommend.search import Search
from servesim.experiments.recommend.space import space_of
from servesim.experiments.smallest_tp import set_up_alone
from servesim.run.scenario import Scenario
from servesim.run.serve_command import merged, served
from servesim.run.trace_source import open_scenario
from servesim.workload.trace import Trace

APART_OFF = {"pd": None} if any(feature.name == "handoff" for feature in installed()) else {}
QUESTION: dict[str, Any] = {
    "trace": "synth:rate=1,prompt=4000,output=20",
    "requests": 80,
    "model": "llama-3.2-1b",
    "gpu": ["h100", "l40s"],
    "preset": "vllm",
    "dtype": "bf16",
    "kv_dtype": "bf16",
    "tp": 1,
    "scheduler.max_num_seqs": 256,
    "scheduler.long_prefill_token_threshold": 0,
    "scheduler.max_num_batched_tokens": [2048, 8192],
    **APART_OFF,
    "dp": 1,
    "router": "round-robin",
    "slo": "ttft:p99<200ms",
    "jobs": 1,
    "replicates": 2,
    "tolerance": 0.1,
    "intervals": False,
}


def ask(**more: Any) -> Any:
    return servesim.recommend(**{**QUESTION, **more})


def test_the_winner_is_the_cheapest_of_all_and_its_command_starts_it(tmp_path: Path) -> None:
    document = ask(out=tmp_path / "out").attrs["document"]
    found = document["recommendation"]
    every = servesim.capacity(**{**QUESTION, "requests": 2_000, "replicates": 1}).attrs["document"]
    prices = [row["usd_per_hour"] / row["rate"] for row in every["rows"] if row["verdict"] == "carries"]
    row = next(row for row in document["rows"] if row["label"] == found["first"])
    assert row["usd_per_hour"] / row["rate"] <= min(prices) * 1.1
    assert found["aim"] == "price per request"
    read = merged({**found["settings"], "gpu": row["gpu"]}, served(found["run"]["command"]).settings)
    assert Scenario.of(read).scheduler == Scenario.of(found["settings"]).scheduler
    assert [*(tmp_path / "out" / "deploy").iterdir()]
    assert found["run"]["lost"] == {}  # trace, model, GPU and SLO are the question's


def test_a_rerun_computes_nothing_and_names_the_same(tmp_path: Path) -> None:
    computed = []
    first = ask(out=tmp_path).attrs["document"]
    again = ask(out=tmp_path, on_progress=lambda p: computed.append(p.computed))
    assert again.attrs["document"] == first
    assert not any(computed)


def test_a_rate_asks_for_the_cheapest_number_of_replicas() -> None:
    found = ask(gpu="h100", rate=100.0).attrs["document"]
    rows = [row for row in found["rows"] if row["verdict"] == "carries"]
    assert found["recommendation"]["aim"] == "price for the rate"
    assert found["recommendation"]["settings"]["replicas"] == rows[0]["replicas"] >= 2
    assert len(found["recommendation"]["run"]["files"]) >= 2  # one command starts one replica only


def test_the_first_line_of_a_table_names_the_requests_of_a_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.csv"
    log.write_text("arrival_s,prompt_len,output_len\n" + "".join(f"{i / 4},400,5\n" for i in range(12)))
    asked = {**QUESTION, "trace": str(log), "gpu": "h100", "scheduler.max_num_batched_tokens": 2048}
    first, again = (
        servesim.recommend(**{**asked, "requests": None, "out": tmp_path / "out"}).attrs["document"] for _ in range(2)
    )
    assert first["requests"] == 12
    assert again == first
    print_recommend(first, None)
    shown = " ".join(capsys.readouterr().out.split())
    assert ", 12 requests, 1x the recorded rate, llama-3.2-1b, h100" in shown
    assert "Pareto front of price, TTFT p99 and headroom: 1 of 1 measured" in shown


def test_a_number_of_gpus_asks_for_the_highest_rate() -> None:
    found = ask(gpu="h100", gpus=2).attrs["document"]["recommendation"]
    assert found["aim"] == "highest rate for the GPUs"
    assert found["settings"]["replicas"] == 2


def test_gpus_are_compared_by_rate_and_a_budget_by_what_it_buys() -> None:
    """One H100 carries more than one L40S, which costs less per request; $1.25 buy one H100, or twelve L40S."""
    prices = {"price": {"h100": 1.2, "l40s": 0.1}}
    cheap = ask(**prices).attrs["document"]["recommendation"]
    fast = ask(**prices, gpus=1).attrs["document"]["recommendation"]
    assert (cheap["settings"]["gpu"], fast["settings"]["gpu"]) == ("l40s", "h100")
    assert all("less" in one["without"] for one in fast["knobs"])
    bought = ask(**prices, budget=1.25).attrs["document"]
    assert bought["recommendation"]["aim"] == "highest rate for the budget"
    first = next(r for r in bought["rows"] if r["label"] == bought["recommendation"]["first"])
    assert first["usd_per_hour"] <= 1.25
    assert bought["recommendation"]["settings"]["replicas"] == 12


@pytest.mark.parametrize("price", [0.13, 0.16])
def test_a_setting_is_worth_what_the_best_compared_deployment_without_it_costs_more(price: float) -> None:
    """At full length, the only other GPU costs 6 or 30 % more; short runs see none and 5 % of that."""
    found = ask(price={"h100": 1.2, "l40s": price}).attrs["document"]["recommendation"]
    knob = next(one for one in found["knobs"] if one["key"] == "gpu")
    assert (found["first"], found["runner_up"]["label"]) == ("h100", "l40s")
    assert (knob["price_ratio"], knob["at_least"]) == (found["runner_up"]["price_ratio"], False)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"slo": {}}, "recommend: specify an SLO"),
        ({"model": "llama-3.1-405b"}, "recommend: no deployment of llama-3.1-405b is possible"),
        ({"gpus": 0}, "gpus is 0 but must be from 1 to 4096"),
        ({"gpus": 5000}, "gpus is 5000 but must be from 1 to 4096"),
        ({"budget": 9.0, "gpus": 3, "rate": 3.0}, "recommend: specify either gpus or a budget"),
        ({"budget": 0.5, "rate": 3.0}, r"no deployment of llama-3.2-1b is possible: more than \$0.50/h"),
        ({"slo": {}, "slo_classes": {"a": {"ttft": 90}}, "budget": 9.0, "rate": 3.0}, "specify a latency to minimize"),
        ({"latency": "itl", "budget": 9.0, "rate": 3.0}, "latency is 'itl' but must be one of ttft, tpot, e2el"),
        ({"latency": "ttft", "budget": 9.0}, "only with a rate, and a budget or gpus"),
        ({"latency": "ttft", "rate": 3.0}, "only with a rate, and a budget or gpus"),
        ({"budget": 9.0, "gpus": 3}, "recommend: specify either gpus or a budget"),
        ({"budget": 0.0}, "budget is 0 but must be above 0 and at most 100,000 dollars per hour"),
        ({"budget": float("nan")}, "budget is nan but must be above 0"),
        ({"budget": 0.5}, r"no deployment of llama-3.2-1b is possible: more than \$0.50/h"),
        (
            {"trace": "synth:rate=1,prompt=uniform(1000,2000),output=20", "engine.max_model_len": 1920},
            r"is possible: 1\d % of the requests exceed its limit of 1,920 tokens \(prompt \+ max_tokens\), and the "
            "SLO lets 1 % miss",
        ),
        ({"rate": float("inf")}, "recommend: no deployment can sustain an infinite rate"),
        ({"rate": [1.0, 2.0]}, "recommend: specify one rate to find the cheapest deployment"),
        ({"rate": 5.0, "replicas": [1, 2]}, "recommend: --replicas cannot be combined with --rate"),
        ({"forms": "nosuch"}, "form 'nosuch'|unknown form"),
        ({"gpu": "a10"}, "--by-formula"),
        ({"forms": "{own}:Half"}, "Half needs a method deployment"),
    ],
)
def test_a_question_without_an_answer_is_one_line(more: dict[str, Any], said: str, tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    half = "class Half(Form):\n    def files(self, scenario):\n        return {}\n"
    own.write_text(f"from servesim.contracts.form import Form\n\n\n{half}")
    more = {key: value.format(own=own) if key == "forms" else value for key, value in more.items()}
    with pytest.raises(UserError, match=said) as caught:
        ask(**more)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("longer", "refused"), [(0, False), (10, False), (22, False), (23, True), (1_000, True)])
def test_requests_too_long_rule_a_deployment_out_only_if_they_surely_miss_the_slo(longer: int, refused: bool) -> None:
    """Of 1,000 requests ten may miss, and 3.15 is the standard deviation of their number."""
    shared = {key: QUESTION[key] for key in ("trace", "model", "slo")}
    settings = {**shared, "gpu": "h100", "engine": {"max_model_len": 600}}
    prompt_len = np.full(1_000, 500)
    prompt_len[:longer] = 600
    trace = Trace.from_lengths("own", np.arange(1_000), prompt_len, np.full(1_000, 100))
    found = too_long(set_up_alone(settings), trace, goals_of(Scenario.of(settings), 0.99))
    assert (found is not None) == refused


def test_if_no_deployment_meets_the_slo_the_one_is_named_that_came_closest() -> None:
    """The slower GPU is tried first; on the faster one, more prompts are within the limit."""
    document = ask(trace="synth:rate=1,prompt=uniform(100,30000),output=20", gpu=["l40s", "h100"], slo="ttft:p99<100ms")
    document = document.attrs["document"]
    assert document["recommendation"] is None
    shares = {row["gpu"]: row["best_attainment"] for row in document["rows"]}
    assert max(shares, key=shares.__getitem__) == "h100"
    assert "h100" in document["answer"].partition("comes closest")[0]


def test_if_bounds_rule_all_out_those_are_compared_that_serve_a_request_alone_the_fastest() -> None:
    document = ask(trace="synth:rate=1,prompt=500,output=20", gpu=["l40s", "h100", "b200"], slo="tpot:p99<100us")
    answer = document.attrs["document"]["answer"]
    assert "b200" in answer.partition("comes closest")[0]
    assert answer.endswith("tokens of 100 % of requests are more than 0.1 ms apart on an idle server")


@pytest.mark.feature("handoff")
def test_a_feature_is_tried_with_the_flags_found_so_far_and_without_them() -> None:
    """For long prompts of Qwen3-32B on B200 under TensorRT-LLM, batches of at most 32 suit servers that do both, and
    pools of three prefill servers and one decode server cost 52 % more with them."""
    terms, objects = Terms(), Objects()
    settings = {"trace": "synth:prompt=8000,output=300", "model": "llama-3.1-8b", "gpu": "h100", "preset": "vllm"}
    question = Question.of({**settings, "slo": "ttft:p99<10s"}, {}, terms, objects, None, None, False)
    with opened(terms, objects, question.space.base) as runner:
        search = Search(question, runner, random.Random(0))
        point = {**next(iter(question.space.structures())), "scheduler.max_num_seqs": 32}
        head = Entrant(point, question.space.variant(point))
        tried = search._with_features(head, search.race(question.scout, question.aim))
    assert {e.point.get("scheduler.max_num_seqs") for e in tried if e.point.get("pd") == "3x1:1x1"} == {32, None}


def test_what_the_published_formats_cost_is_told_however_much_it_is() -> None:
    more = {"model": "llama-3.1-8b", "gpu": "h100", "dtype": ["bf16", "fp8"], "slo": "tpot:p99<8ms"}
    found = ask(**more).attrs["document"]["recommendation"]
    assert found["settings"]["dtype"] == "fp8"
    assert found["published"]["label"].startswith("bf16")
    assert found["published"]["price_ratio"] > 1.2


def test_clients_that_wait_for_answers_have_no_highest_rate() -> None:
    for command in (servesim.recommend, servesim.capacity):
        with pytest.raises(UserError, match="clients that wait for answers never send more"):
            command(
                trace="synth:rate=1", model="llama-3.2-1b", gpu="h100", slo="ttft:1000", clients={"max_concurrency": 8}
            )


def test_every_deployment_has_a_name_in_what_is_said() -> None:
    question = {**QUESTION, "gpu": "h100", "scheduler.max_num_seqs": [1, 256]}
    document = ask(**question).attrs["document"]
    assert all(row["label"] for row in document["rows"])


def test_an_slo_that_nothing_meets_is_said_and_recommends_nothing() -> None:
    document = ask(slo="ttft:0.001").attrs["document"]
    assert document["recommendation"] is None
    assert document["answer"].startswith("No deployment sustains any rate")


def test_the_bound_is_above_what_a_deployment_carries() -> None:
    asked = {k: QUESTION[k] for k in ("trace", "model", "slo")}
    space = space_of({**asked, "requests": 1_500}, {}, False)
    for point in ({"gpu": "h100", "preset": "vllm", "dtype": "bf16", "tp": 1}, {"gpu": "l40s", "preset": "sglang"}):
        setup = space.set_up(point)
        assert not isinstance(setup, str)
        trace = open_scenario(Scenario.of(space.settings(point)))
        bound = optimistic_rate(setup, Work.of(trace), float("inf"))
        document = servesim.capacity(space.settings(point), jobs=1, replicates=1, intervals=False)
        assert bound >= document.attrs["document"]["rows"][0]["rate"]


@pytest.mark.parametrize("method", ["eagle:k=3", "ngram:k=5", "medusa"])
def test_the_bound_with_drafts_is_above_what_a_deployment_carries(method: str) -> None:
    """Also if nearly all drafts are accepted."""
    asked = {k: QUESTION[k] for k in ("model",)} | {
        "trace": "synth:rate=1,prompt=50,output=400",
        "requests": 400,
        "gpu": "h100",
        "slo": "tpot:p99<20ms",
        "speculation": method,
        "acceptance": "independent:alpha=0.99",
    }
    space = space_of(asked, {}, False)
    setup = space.set_up({})
    assert not isinstance(setup, str)
    bound = optimistic_rate(setup, Work.of(setup.trace), 20.0)
    row = servesim.capacity(asked, jobs=1, replicates=1, intervals=False).attrs["document"]["rows"][0]
    assert row["rate"] <= bound < float("inf")


@pytest.mark.feature("handoff")
def test_the_bound_with_prefill_and_decode_apart_is_above_what_they_carry() -> None:
    asked = {k: QUESTION[k] for k in ("trace", "model", "slo")} | {"requests": 1_500, "gpu": "h100"}
    space = space_of(asked, {}, False)
    bounds = []
    for pd in ("1x1:1x1", "2x1:1x1"):
        setup = space.set_up({"pd": pd})
        assert not isinstance(setup, str)
        bounds.append(optimistic_rate(setup, Work.of(setup.trace)._replace(prompt=4000, output=20), float("inf")))
        document = servesim.capacity({**asked, "pd": pd}, jobs=1, replicates=1, intervals=False)
        assert bounds[-1] >= document.attrs["document"]["rows"][0]["rate"]
    assert bounds[0] < bounds[1] <= 2 * bounds[0]  # prefill is the slower side of the first


def test_a_user_s_replicas_are_paid_for_and_counted_in_the_bound() -> None:
    asked = {k: QUESTION[k] for k in ("trace", "model", "slo")} | {"gpu": "h100"}
    one, two = (space_of({**asked, "replicas": n}, {}, False) for n in (1, 2))
    rates = []
    for space in (one, two):
        setup = space.set_up({})
        assert not isinstance(setup, str)
        rates.append(optimistic_rate(setup, Work(600, 20, False), 1e9))
    assert rates[1] == pytest.approx(2 * rates[0])
    assert PricePerRequest().cost(two.variant({})) == 2 * PricePerRequest().cost(one.variant({}))


def test_runs_last_ten_relaxation_times_of_a_queue_that_just_meets_its_ttft() -> None:
    """P99 of 1 s is a mean wait of 1 / ln 100 = 0.217 s. With prompts all alike, 4 x 0.217^2 = 0.189 s per request/s:
    ten of them at 50/s are 94 s and 4,716 requests. Prompts as variable as exponential ones halve that."""
    goals = goals_of(
        Scenario.of({"trace": "synth:rate=1", "model": "m", "gpu": "h100", "slo": "ttft:p99<1s,tpot:p99<50ms"}), 0.99
    )
    alike, varied = np.full(1000, 600), np.tile([0, 1200], 500)
    assert relaxation_s(goals, alike) == pytest.approx(0.1886, rel=1e-3)
    assert relaxation_s(goals, varied) == pytest.approx(0.0943, rel=1e-3)
    assert Length(least=2_000, relaxation_s=10 * relaxation_s(goals, alike)).at(50.0) == 5_000


def test_runs_that_cannot_be_long_enough_must_show_that_their_queue_stays_bounded() -> None:
    """Ten times an end-to-end limit of 300 s takes 20,000 requests up to 6.67/s."""
    goals = goals_of(Scenario.of({"trace": "synth:rate=1", "model": "m", "gpu": "h100", "slo": "e2el:p99<300s"}), 0.99)
    length = Length(least=2_000, seconds=horizon_s(goals, 100.0))
    assert (length.at(6.0), length.at(7.0)) == (18_000, 20_000)
    assert (length.short(6.6), length.short(6.7)) == (False, True)
    assert not Length().short(1e9)  # a log is as long as it is


def test_a_shorter_run_of_a_log_replays_its_busiest_stretch() -> None:
    prompts = [10] * 5 + [100, 100, 30] + [10] * 12
    trace = Trace.from_lengths("log", range(20), prompts, [5] * 20)
    assert Length(least=3, work=work_of(trace)).settings(1.0) == {"requests": 3, "skip": 5}
    assert Length(least=3, work=work_of(trace), skip=7).settings(1.0) == {"requests": 3, "skip": 12}
    assert Length(least=20, work=work_of(trace)).settings(1.0) == {}


def test_a_horizon_is_many_times_the_limits() -> None:
    """10 x 0.5 s, and twice 100 tokens at 50 ms each."""
    goals = goals_of(
        Scenario.of({"trace": "synth:rate=1", "model": "m", "gpu": "h100", "slo": "ttft:500,tpot:50"}), 0.99
    )
    assert horizon_s(goals, 100.0) == pytest.approx(15.0)


def test_loads_of_aims_by_hand() -> None:
    """An H100 costs $3 per hour here."""
    v = Variant("one", {}, {"trace": "synth:rate=1", "model": "llama-3.2-1b", "gpu": "h100", "usd_per_gpu_hour": 3.0})
    assert PricePerRequest().load(v, 0.5) == 6.0
    assert PricePerRequest().price(v, 6.0) == 0.5
    assert PriceForRate(10.0, 64).load(v, 12.0) == 3  # the fourth would cost as much
    assert PriceForRate(10.0, 64).load(v, 3.0) is None
    assert PriceForRate(10.0, 2).load(v, 12.0) == 2
    assert PriceForRate(10.0, 64).price(v, 3) == 9.0
    assert PriceForRate(10.0, 64).bound(v, 4.0) == 9.0
    assert MostTraffic(8).load(v, 1 / 8) == 8.0
    assert (MostTraffic(8).replicas(v), MostForBudget(10.0).replicas(v), MostForBudget(2.9).replicas(v)) == (8, 3, 0)
    two = Variant("two", {}, {**v.settings, "replicas": 2})
    assert Headroom().rank(v, 0.9) < Headroom().rank(two, 0.1)
