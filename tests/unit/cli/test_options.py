"""The options of a scenario: every setting is one, in every command that takes a scenario, and reaches it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from pydantic import BaseModel

import servesim
from servesim.cli import app as cli
from servesim.cli.options import canonical
from servesim.errors import UserError
from servesim.experiments.axes import product
from servesim.run import simulate
from servesim.run.part_names import sections_of
from servesim.run.scenario import Scenario

EXPERIMENTS = ("compare", "sweep", "capacity")
COMMANDS = ("run", *EXPERIMENTS)
SECTIONS: dict[str, type[BaseModel]] = {"": Scenario} | {
    f"{name}.": model for name, model in sections_of(Scenario).items()
}
SETTINGS = {
    f"{prefix}{name}": field
    for prefix, model in SECTIONS.items()
    for name, field in model.model_fields.items()
    if prefix or name not in sections_of(Scenario)
}
NAMED_BEFORE = (
    *("trace", "model", "gpu", "engine", "scheduler", "kv", "speculation", "acceptance", "router", "replicas", "tp"),
    *("pp", "dtype", "kv-dtype", "rate", "request-rate", "max-concurrency", "requests", "seed", "host"),
    *("kernel-tables", "slo", "mode", "stream", "check", "ignore-memory", "sort", "spread-ticks", "shape", "set"),
)
"""The options that were written by hand."""

Call = Callable[..., tuple[int, str, dict[str, Any]]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Runs a command line up to its work: exit code, stderr, and what the work would have been given."""
    given: dict[str, Any] = {}

    def seen(*files: str, on_progress: Any = None, **keywords: Any) -> None:
        given.update({"files": files} if files else {}, **keywords)
        raise UserError("seen")

    for command in EXPERIMENTS:
        monkeypatch.setattr(servesim, command, seen)  # imports what it replaces, which imports the next
    monkeypatch.setattr(simulate, "simulate", lambda settings, **_: seen(**settings))

    def run(*arguments: str) -> tuple[int, str, dict[str, Any]]:
        given.clear()
        monkeypatch.setattr(sys, "argv", ["servesim", *arguments])
        code = cli._guarded()
        return code, capsys.readouterr().err, dict(given)

    return run


def declared(command: str) -> dict[str, Any]:
    """The options of a command by what is typed."""
    root: Any = typer.main.get_command(cli.app)
    return {name: option for option in root.commands[command].params for name in option.opts}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_field_of_a_scenario_is_an_option_with_its_docstring_and_default(command: str) -> None:
    options = declared(command)
    for key, field in SETTINGS.items():
        assert field.description, key
        option = options[f"--{'preset' if key == 'preset' else key.replace('_', '-')}"]
        words = field.description.replace("`", "").split()
        assert option.help.split()[: len(words) - 1] == words[:-1], key  # the last may go on: "...; repeatable."
        default = field.default["name"] if isinstance(field.default, dict) and field.default else field.default
        if isinstance(default, str) or (isinstance(default, int | float) and default is not False):
            assert option.help.endswith(f"[default: {str(default).lower()}]"), key
        else:
            assert "[default" not in option.help, key


@pytest.mark.parametrize("command", COMMANDS)
def test_the_options_that_were_written_by_hand_are_there(command: str) -> None:
    assert {f"--{name}" for name in NAMED_BEFORE} <= declared(command).keys()


SPECIAL = {"acceptance": "positions", "slo": "ttft:5", "slo_classes": "gold: ttft:5", "preset": "orca"}
LISTS = ("shape", "cluster.failures", "pools", "features")
SPECIAL |= {"spread_ticks": "uniform", "features": str(Path(__file__).parents[2] / "support" / "energy.py") + ":Energy"}


def value_of(key: str, annotation: str) -> str:
    """A value that an option takes."""
    number = "int" in annotation or "float" in annotation
    return SPECIAL.get(key, "7" if number else "false" if "bool" in annotation else "some")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_field_can_be_set_and_is_set_where_it_stands(command: str, call: Call) -> None:
    for key, field in SETTINGS.items():
        value = value_of(key, str(field.annotation))
        section, _, name = key.rpartition(".")
        _, err, given = call(command, f"--{key}", value)
        assert err == "error: seen\n", key
        if command != "run":
            assert given[key] == ([value] if key in LISTS else value), key
        elif key == "shape":
            assert given[key] == [value]
        else:
            found = (given[section] if section else given)[name]
            found = found[0] if key in LISTS else found
            assert str(found).lower().removesuffix(".0") == value.lower(), key


@pytest.mark.parametrize("command", COMMANDS)
def test_hyphens_underscores_and_the_equals_sign_are_alike(command: str, call: Call) -> None:
    typed = (
        ["--scheduler.max-num-seqs", "64", "--engine.block-size", "32", "--kv-dtype", "fp8"],
        ["--scheduler.max_num_seqs=64", "--engine.block_size=32", "--kv_dtype=fp8"],
    )
    one, other = (
        call(command, "a.yaml", *words)[2] if command != "run" else call(command, *words)[2] for words in typed
    )
    assert one == other
    if command == "run":
        assert one["scheduler"] == {"name": "vllm", "max_num_seqs": 64}
        assert (one["engine"], one["kv_dtype"]) == ({"block_size": 32}, "fp8")
    else:
        assert (one["scheduler.max_num_seqs"], one["engine.block_size"], one["kv_dtype"]) == ("64", "32", "fp8")


def test_a_parameter_belongs_to_the_policy_named_wherever_that_stands(call: Call) -> None:
    for words in (["--scheduler.max-num-seqs", "64", "--scheduler", "sarathi"], ["--scheduler", "sarathi"]):
        given = call("run", *words, "--scheduler.max-num-seqs", "64")[2]
        assert given["scheduler"] == {"name": "sarathi", "max_num_seqs": 64}
    given = call("run", "--engine", "sglang", "--scheduler.schedule-policy", "lpm")[2]
    assert given["scheduler"]["name"] == "sglang"
    for variant in product({}, {"scheduler.max_num_seqs": "8,16", "scheduler": "sarathi"}):
        assert variant.settings["scheduler"]["name"] == "sarathi"
        assert variant.label == f"scheduler.max_num_seqs={variant.settings['scheduler']['max_num_seqs']}"


@pytest.mark.parametrize(
    "words",
    [
        ["--pd", "none"],
        ["--pd", "null"],
        pytest.param(["--set", "pd=none"], marks=pytest.mark.feature("handoff")),
        ["--kv-dtype", "auto"],
    ],
)
def test_none_and_auto_are_a_setting_that_is_not_given(words: list[str], call: Call) -> None:
    plain = {"trace": "t", "model": "llama-3.1-8b", "gpu": "h100"}
    assert Scenario.of(plain | call("run", *words)[2]) == Scenario.of(plain)
    given = {key: value for key, value in call("sweep", *words)[2].items() if key in ("pd", "kv_dtype")}
    (variant,) = product(plain, given)
    assert Scenario.of(variant.settings) == Scenario.of(plain)


def test_auto_lets_the_weights_decide_the_kv_format() -> None:
    """vLLM and SGLang keep KV in 16 bits, TensorRT-LLM in fp8 under fp8 weights."""
    plain = {"trace": "t", "model": "llama-3.1-8b", "gpu": "h100", "dtype": "fp8", "preset": "tensorrt-llm"}
    assert Scenario.of({**plain, "kv_dtype": "auto"}).kv_dtype == Scenario.of(plain).kv_dtype == "fp8"


@pytest.mark.feature("classes")
def test_limits_of_a_class_keep_its_name_and_their_commas(call: Call) -> None:
    words = ["--slo.ttft", "500", "--slo-classes.gold-tier", "ttft:300,tpot:50"]
    given = Scenario.of({"trace": "t", "model": "m", "gpu": "g"} | call("run", *words)[2])
    assert (given.slo, given.slo_classes) == ({"ttft": 500}, {"gold-tier": {"ttft": 300, "tpot": 50}})
    axes = {key: value for key, value in call("sweep", *words)[2].items() if key.startswith("slo")}
    (variant,) = product({"trace": "t", "model": "m", "gpu": "g"}, axes)
    assert Scenario.of(variant.settings).slo_classes == given.slo_classes


def test_a_switch_takes_a_value_only_where_one_follows(call: Call) -> None:
    given = call("run", "--sort", "--spread-ticks", "--engine.async-scheduling", "false", "--ignore-memory")[2]
    found = Scenario.of({"trace": "t", "model": "m", "gpu": "g"} | given)
    assert (found.sort, found.spread_ticks) == (True, "uniform")
    assert (found.engine.async_scheduling, found.engine.ignore_memory) == (False, True)
    given = call("sweep", "--sort", "a.yaml", "--engine.async-scheduling", "true,false", "--check=false")[2]
    assert given["files"] == ("a.yaml",)
    assert (given["sort"], given["engine.async_scheduling"], given["check"]) == ("true", "true,false", "false")


def test_axes_come_in_the_order_typed_and_the_last_of_two_holds(call: Call) -> None:
    words = "a.yaml --tp 1,2 --set engine.block_size=16 --kv.x 1 --rate 2 --set engine.block_size=32 --tp 4 b.yaml"
    given = call("compare", *words.split())[2]
    assert given["files"] == ("a.yaml", "b.yaml")
    axes = [(key, given[key]) for key in given if key in ("tp", "engine.block_size", "kv.x", "rate")]
    assert axes == [("tp", "4"), ("engine.block_size", "32"), ("kv.x", "1"), ("rate", "2")]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("words", "told"),
    [
        pytest.param(
            "--schedular vllm",
            "--schedular (Possible options: --scaler, --scheduler)",
            marks=pytest.mark.feature("scaling"),
        ),
        ("--engine.blocksize 3", '--engine.blocksize (did you mean "--engine.block-size"?)'),
        ("--clients.timeouts=3", '--clients.timeouts (did you mean "--clients.timeout-s"?)'),
        ("--schedulr.max-num-seqs 3", '--schedulr.max-num-seqs (did you mean "--scheduler.max-num-seqs"?)'),
        pytest.param(
            "--nothing.at-all 3",
            "--nothing.at-all (choose from: acceptance, clients, cluster, disaggregate, engine,",
            marks=pytest.mark.feature("handoff"),
        ),
        ("--scheduler. 3", "--scheduler. (add a parameter name after the dot)"),
        ("--tp.x 3", "--tp.x (choose from"),
        ("-x", "-x"),
        ("--scheduler", "'--scheduler' requires an argument"),
        ("--scheduler.max-num-seqs", "'--scheduler.max-num-seqs' requires an argument"),
        ("--set seed", "write key=value"),
    ],
)
def test_an_option_that_is_none_is_refused_in_one_line(command: str, words: str, told: str, call: Call) -> None:
    code, err, given = call(command, *words.split())
    assert (code, err.count("\n"), given) == (2, 1, {})
    assert told in err


def test_words_after_a_double_hyphen_are_no_options() -> None:
    assert canonical(["--sort", "--", "--sort"])[0] == ["--sort=true", "--", "--sort"]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_scenario_loads_nothing_heavy(command: str) -> None:
    script = f"import sys; sys.argv = ['servesim', '{command}', '--help']; from servesim.cli import app as cli"
    script += "; cli._guarded(); print(*sys.modules)"
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    heavy = {"numpy", "pandas", "scipy", "matplotlib", "pyarrow", "simpy", "yaml", "servesim.contracts.plan"}
    assert heavy & set(printed.splitlines()[-1].split()) == set()
