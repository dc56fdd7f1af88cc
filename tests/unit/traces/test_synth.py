"""Synthetic traces: distributions, common random numbers, and the spec's error messages."""

from __future__ import annotations

import numpy as np
import pytest

from servesim.errors import UserError
from servesim.traces.inspect import dispersion, inspect
from servesim.traces.synth import synthesize


def test_defaults_are_a_thousand_poisson_requests_of_512_and_128() -> None:
    trace = synthesize("rate=20")
    assert len(trace) == 1000
    assert set(trace.prompt_len.tolist()) == {512}
    assert set(trace.output_len.tolist()) == {128}
    assert inspect(trace).mean_rate == pytest.approx(20, rel=0.1)


def test_a_request_keeps_its_lengths_whatever_the_rate_number_or_process() -> None:
    lengths = "prompt=lognormal(p50=512,p95=2048),output=uniform(10,90)"
    base = synthesize(f"rate=1,{lengths}", 400, seed=5)
    for other in (
        synthesize(f"rate=8,{lengths}", 100, seed=5),
        synthesize(f"arrivals=gamma(cv=3),{lengths}", 100, seed=5),
        synthesize(f"arrivals=mmpp(ratio=9,on=3,off=9),{lengths},prefix=shared(length=64)", 100, seed=5),
    ):
        assert np.array_equal(base.prompt_len[:100], other.prompt_len)
        assert np.array_equal(base.output_len[:100], other.output_len)


def test_samples_of_an_answer_have_lengths_of_their_own_that_do_not_depend_on_how_many_there_are() -> None:
    one = synthesize("output=uniform(1,1000)", 50)
    four = synthesize("output=uniform(1,1000),n=4", 50)
    mixed = synthesize("output=uniform(1,1000),n=uniform(1,8)", 50)
    assert four.n.tolist() == [4] * 50
    assert four.samples is not None
    assert mixed.samples is not None
    for row in range(50):
        assert one.output_len[row] == four.output_len[row] == mixed.output_len[row]
        drawn = four.samples.lengths(row)
        shared = min(len(drawn), int(mixed.n[row]) - 1)
        assert drawn[:shared] == mixed.samples.lengths(row)[:shared]
        assert len({int(four.output_len[row]), *drawn}) > 1, "each sample has its own length"
        assert four.max_tokens[row] == max(four.output_len[row], *drawn), "the longest ends at the cap"
    assert set(mixed.n.tolist()) == set(range(1, 9))
    assert inspect(four).sequences == 200


@pytest.mark.parametrize("process", ["poisson", "constant", "gamma(cv=2)", "gamma(burstiness=0.25)"])
def test_a_new_rate_scales_the_same_arrivals(process: str) -> None:
    slow = synthesize(f"arrivals={process},rate=1", 200)
    fast = synthesize(f"arrivals={process},rate=4", 200)
    assert np.allclose(slow.arrival_ns / 4, fast.arrival_ns, atol=1)


def test_burstiness_is_the_inverse_square_of_cv() -> None:
    a, b = (synthesize(f"arrivals=gamma({arg}),rate=3", 200) for arg in ("cv=2", "burstiness=0.25"))
    assert np.array_equal(a.arrival_ns, b.arrival_ns)


def test_arrival_processes_have_their_rate_and_burstiness() -> None:
    cvs = {"constant": 0.0, "poisson": 1.0, "gamma(cv=2)": 2.0}
    for process, cv in cvs.items():
        summary = inspect(synthesize(f"arrivals={process},rate=10", 20_000))
        assert summary.mean_rate == pytest.approx(10, rel=0.06)
        assert summary.cv == pytest.approx(cv, abs=0.1)
    mmpp = synthesize("arrivals=mmpp(ratio=10,on=5,off=20),rate=10", 20_000)
    assert inspect(mmpp).mean_rate == pytest.approx(10, rel=0.1)
    assert (dispersion(mmpp.arrival_ns, 10) or 0) > 20


def test_lengths_follow_their_distributions() -> None:
    def prompts(spec: str) -> np.ndarray:  # type: ignore[type-arg]
        return synthesize(f"prompt={spec}", 20_000).prompt_len

    p50, p95 = np.percentile(prompts("lognormal(p50=512,p95=2048)"), [50, 95])
    assert (p50, p95) == (pytest.approx(512, rel=0.03), pytest.approx(2048, rel=0.05))
    assert prompts("lognormal(mean=300,sigma=0.5)").mean() == pytest.approx(300, rel=0.02)
    assert prompts("lognormal(p50=512,p95=2048,max=1000)").max() == 1000
    die = prompts("uniform(1,6)")
    assert np.bincount(die)[1:].tolist() == pytest.approx([20_000 / 6] * 6, rel=0.07)
    assert np.percentile(prompts("empirical(10|50|400)"), [0, 50, 100]) == pytest.approx([10, 50, 400], rel=0.03)
    assert prompts("fixed(7)").tolist() == prompts("7").tolist() == [7] * 20_000


def test_joint_lengths_come_from_a_preset() -> None:
    trace = synthesize("rate=5,lengths=azure-code-2023", 2000)
    assert np.median(trace.prompt_len) == pytest.approx(1469, rel=0.1)
    assert np.median(trace.output_len) == pytest.approx(13, abs=1.5)


def test_shared_prefixes_begin_the_prompts_without_changing_their_lengths() -> None:
    trace = synthesize("prompt=uniform(10,500),prefix=shared(groups=4,length=100,share=0.75,zipf=1)", 8000)
    assert trace.content is not None
    runs = [trace.content.runs(row) for row in range(len(trace))]
    assert all(sum(n for _, n in row) == length for row, length in zip(runs, trace.prompt_len, strict=True))
    heads = np.array([row[0][0] for row in runs])
    assert np.mean(heads < 4) == pytest.approx(0.75, abs=0.02)
    popularity = np.bincount(heads[heads < 4]) / np.sum(heads < 4)
    assert popularity == pytest.approx(np.array([12, 6, 4, 3]) / 25, abs=0.02)
    assert max(row[0][1] for row in runs if row[0][0] < 4) == 100


BAD = [
    ("rte=3", "unknown key 'rte' (did you mean \"rate\"?)"),
    ("rate", "'rate' must have the form key=value"),
    ("rate=2,rate=3", "rate is specified twice"),
    ("rate=0", "rate is 0 but must be positive"),
    ("rate=1e-300", "the rate is too low: the last request would arrive after 146 years"),
    ("rate=1e-12", "the rate is too low: the last request would arrive after 146 years"),
    ("rate=fast", "rate is 'fast' but must be a number"),
    ("arrivals=poison", "unknown arrivals 'poison' (did you mean \"poisson\"?)"),
    ("arrivals=poisson(cv=2)", "arrivals=poisson: unknown argument 'cv'"),
    ("arrivals=gamma", "arrivals=gamma: write gamma(cv) or gamma(burstiness)"),
    ("arrivals=gamma(cv=-1)", "cv is -1 but must be positive"),
    ("prompt=lognormal(p50=5)", "write lognormal(p50,p95,max) or lognormal(mean,sigma,max)"),
    ("prompt=lognormal(p50=5,p59=9)", "unknown argument 'p59' (did you mean \"p95\"?)"),
    ("prompt=uniform(9,3)", "low 9 is above high 3"),
    ("prompt=0", "lengths must be at least 1, not 0"),
    ("prompt=normal(3)", "unknown distribution 'normal'"),
    ("prompt=uniform(1,2", "brackets do not match"),
    ("prompt=5,lengths=azure-conv-2023", "sets both prompt and output"),
    ("prefix=shared(groups=2)", "prefix=shared: write shared(groups,length,share,zipf)"),
]


@pytest.mark.parametrize(("spec", "message"), BAD, ids=[spec for spec, _ in BAD])
def test_bad_specs_are_refused_in_one_line(spec: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        synthesize(spec, 10)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_turns_repeat_what_was_said_and_wait_for_the_answer() -> None:
    spec = "arrivals=constant,rate=2,prompt=10,output=4,prefix=shared(length=6),turns=chat(turns=3,think=5)"
    trace = synthesize(spec, 7)
    assert trace.arrival_ns.tolist() == [0, 0, 0, 500_000_000, 500_000_000, 500_000_000, 1_000_000_000]
    assert trace.prompt_len.tolist() == [10, 24, 38, 10, 24, 38, 10]
    assert trace.labels["session"] == ("session-0",) * 3 + ("session-1",) * 3 + ("session-2",)
    assert trace.content is not None
    assert trace.content.runs(2)[:-1] == [*trace.content.runs(1), (-2, 4)]
    assert trace.content.runs(1)[:-1] == [*trace.content.runs(0), (-1, 4)]
    assert trace.content.runs(3)[0] == trace.content.runs(0)[0], "sessions share a prefix"
    assert trace.after is not None
    assert [len(trace.after.edges(row)) for row in range(7)] == [0, 1, 1, 0, 1, 1, 0]
    many = synthesize("turns=chat(turns=20,think=5)", 4000)
    assert many.after is not None
    assert many.after.delays_ns.mean() / 1e9 == pytest.approx(5, rel=0.06)
    with pytest.raises(UserError, match="whole number"):
        synthesize("turns=chat(turns=0)", 3)
