"""A policy of the user's own that hands on something else than its contract says: the same on a compiled build and on a
pure one, be it served or refused in one line."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import UserList
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from servesim.contracts import (
    REGISTRIES,
    KVAllocator,
    Registry,
    Router,
    Scaler,
    Scheduler,
    build_params,
    kv_allocators,
    schedulers,
)
from servesim.contracts.connector import Connector
from servesim.contracts.decider import Decider
from servesim.contracts.feature import Feature
from servesim.contracts.part import Part
from servesim.errors import PolicyError, UserError
from servesim.plugins.terms import terms_of
from servesim.plugins.user_policies import _BLAMED, _adopted, _settlers, is_own
from tests.support.own_policies import SCHEDULER, TEXTS, method
from tests.support.worlds import World, toy_trace

WORLD = World(toy_trace([0, 0, 0, 500_000], [8, 8, 8, 8], [4, 4, 4, 4]), num_blocks=300)
CONTRACTS = [*(registry._base for registry in REGISTRIES), Feature, Part, Connector, Decider]


def world(folder: Path, kind: str, text: str) -> World:
    file = folder / "mine.py"
    file.write_text(text)
    speculation = {"speculation": "ngram:k=4"} if kind == "acceptance" else {}
    return replace(WORLD, **speculation, **{kind: f"{file}:Mine"})


def served(described: World, mode: str) -> tuple[Any, ...]:
    recorder = described.run(mode, check=True).recorder
    assert recorder.requests.column("output_len").tolist() == [4, 4, 4, 4]
    return recorder.requests.array().tolist(), recorder.steps.array().tolist()


# In the text of a policy: what stands there and what takes its place ("": at the end).
ALIKE = {
    "waiting is a list": (
        "scheduler",
        "",
        method("__init__(self, *args)", "super().__init__(*args)", "self.waiting = []"),
    ),
    "waiting is sorted again": (
        "scheduler",
        "",
        method("on_arrival(self, request)", "self.waiting = sorted([*self.waiting, request], key=lambda r: r.row)"),
    ),
    "num_waiting returns numpy's": ("scheduler", "", method("num_waiting(self)", "return np.int32(len(self.waiting))")),
    "on_arrival returns something": (
        "scheduler",
        "",
        method("on_arrival(self, request)", "self.waiting.append(request)", "return len(self.waiting)"),
    ),
    "commit returns something": ("scheduler", "", method("commit(self, step_id, sampled)", "return step_id")),
    "waiters returns a list": ("scheduler", "", method("waiters(self)", "return list(self.waiting)")),
    "a number of tokens is a bool": ("scheduler", "extend(request, 1)", "extend(request, True)"),
    "supports is a list": ("scheduler", "def plan", 'supports = ["async"]\n    def plan'),
    "can_admit returns numpy's": ("kv", "return max(now_tokens, full_tokens) <=", "return np.int64(now_tokens) <="),
    "grow returns numpy's": ("kv", "return True", "return np.True_"),
    "slots returns numpy's": ("kv", "return self.held.get(request, 0)", "return np.int64(self.held.get(request, 0))"),
    "usage returns numpy's": ("kv", "Usage(self.held_tokens", "Usage(np.int64(self.held_tokens)"),
    "usage returns a tuple": ("kv", "return Usage(", "return ("),
    "lookup returns numpy's": ("kv", "", method("lookup(self, request)", "return Hit(np.int64(0))")),
    "admit returns something": ("kv", "self.grow(request", "return self.grow(request"),
    "fits returns numpy's": ("kv", "", method("fits(self, request)", "return np.True_")),
    "route returns numpy's": ("router", "return 0", "return np.argmin([v.num_running for v in views])"),
    "a router without super().__init__": ("router", "", method("__init__(self, *args)", "pass")),
    "limit returns numpy's": ("speculation", "", method("limit(self, batch)", "return np.int64(self.max_drafts)")),
    "accepted returns numpy's": ("acceptance", "return drafts // 2", "return np.int64(drafts // 2)"),
}


@pytest.mark.parametrize(("kind", "old", "new"), ALIKE.values(), ids=ALIKE)
def test_what_means_the_same_is_served_the_same(kind: str, old: str, new: str, tmp_path: Path) -> None:
    text = TEXTS[kind]
    assert old in text
    for mode in ("reference", "fast"):
        plain = served(world(tmp_path, kind, text), mode)
        assert served(world(tmp_path, kind, text.replace(old, new, 1) if old else text + new), mode) == plain


WRONG = {
    "waiting cannot be appended to": (
        "scheduler",
        "",
        method("__init__(self, *args)", "super().__init__(*args)", "self.waiting = None"),
        "Mine at 0 ns: AttributeError: 'NoneType' object has no attribute 'append'",
    ),
    "running is no list": (
        "scheduler",
        "",
        method("__init__(self, *args)", "super().__init__(*args)", "self.running = deque()"),
        r"Mine: .*deque.*|Mine: __init__ raises TypeError: list object expected; got collections.deque \(mine.py",
    ),
    "running becomes a tuple": (
        "scheduler",
        "return ctx",
        "self.running = tuple(self.running); return ctx",
        "Mine at 0 ns: .*list.*",
    ),
    "__init__ is not the base class's": (
        "scheduler",
        "",
        method("__init__(self, *args)", "pass"),
        r"Mine: attribute params is missing: its __init__ must call super\(\).__init__",
    ),
    "__init__ raises": (
        "scheduler",
        "",
        method("__init__(self, *args)", "1 / 0"),
        r"Mine: __init__ raises ZeroDivisionError: division by zero \(mine.py line 20\)",
    ),
    "__init__ takes other arguments": (
        "scheduler",
        "",
        method("__init__(self)", "pass"),
        r"Mine: TypeError: .* takes 1 positional argument",
    ),
    "tokens are numpy's": (
        "scheduler",
        "extend(request, 1)",
        "extend(request, np.int64(1))",
        r"Mine at \d+ ns: plan raises TypeError: int object expected; got numpy.int64 \(mine.py line 9\)",
    ),
    "tokens are a float": (
        "scheduler",
        "extend(request, 1)",
        "extend(request, 1.0)",
        r"Mine at \d+ ns: plan raises TypeError: int object expected; got float \(mine.py line 9\)",
    ),
    "tokens are None": (
        "scheduler",
        "extend(request, 1)",
        "extend(request, None)",
        r"Mine at \d+ ns: plan raises TypeError: .*None.*line 9",
    ),
    "tokens of a prompt are a float": (
        "scheduler",
        "request.num_tokens,",
        "float(request.num_tokens),",
        r"Mine at 0 ns: plan raises TypeError: int object expected; got float \(mine.py line 13\)",
    ),
    "a reserve is a float": (
        "scheduler",
        "reserve=0",
        "reserve=0.5",
        "Mine at 0 ns: plan raises TypeError: int object expected; got float",
    ),
    "tokens are entered into the plan as numpy's": (
        "scheduler",
        "return ctx",
        "ctx.plan.tokens.update((r, np.int64(n)) for r, n in ctx.plan.tokens.items()); return ctx",
        "Mine at 0 ns.* int",
    ),
    "a row is padded to numpy's": (
        "scheduler",
        "return ctx",
        "ctx.plan.layout = 'padded'; ctx.plan.padded_len = np.int64(20); return ctx",
        "Mine at 0 ns.* int",
    ),
    "a layout that there is not": (
        "scheduler",
        "return ctx",
        "ctx.plan.layout = 'odd'; return ctx",
        "Mine at 0 ns: ValueError: unknown layout 'odd'",
    ),
    "an attribute that a request has not": (
        "scheduler",
        "del self.waiting[0]",
        "request.rank = 1",
        r"Mine at 0 ns: plan raises AttributeError: 'Request' object has no attribute 'rank'.* \(mine.py line 15\)",
    ),
    "lookahead is numpy's": (
        "scheduler",
        "def plan",
        "lookahead = np.int64(1)\n    def plan",
        r"Mine: lookahead is np.int64\(1\), not an int",
    ),
    "needs is a str": (
        "scheduler",
        "def plan",
        "needs = 'output_len'\n    def plan",
        "Mine: needs is 'output_len', not a frozenset of str",
    ),
    "num_waiting returns None": (
        "scheduler",
        "",
        method("num_waiting(self)", "pass"),
        "Mine: num_waiting returns None, not an int",
    ),
    "an arrival raises": (
        "scheduler",
        "",
        method("on_arrival(self, request)", "1 / 0"),
        r"Mine at 0 ns: on_arrival raises ZeroDivisionError: division by zero \(mine.py line 20\)",
    ),
    "an arrival raises what is no Exception": (
        "scheduler",
        "",
        method("on_arrival(self, request)", "raise BaseException('gone')"),
        r"Mine at 0 ns: on_arrival raises BaseException: gone \(mine.py line 20\)",
    ),
    "an arrival ends the process": (
        "scheduler",
        "",
        method("on_arrival(self, request)", "raise GeneratorExit"),
        r"Mine at 0 ns: on_arrival raises GeneratorExit",
    ),
    "on_finish returns no sequence": (
        "scheduler",
        "",
        method("on_finish(self, requests)", "super().on_finish(requests)", "return 5"),
        r"Mine at \d+ ns: TypeError: 'int' object is not iterable",
    ),
    "can_admit returns None": (
        "kv",
        "return max",
        "max",
        "Mine: can_admit returns None, not True or False",
    ),
    "grow returns a number": ("kv", "return True", "return more", "Mine: grow returns 8, not True or False"),
    "slots returns a float": ("kv", "request, 0)", "request, 0) * 1.0", "Mine: slots returns 8.0, not an int"),
    "slots returns None": ("kv", "request, 0)", "request)", "Mine: slots returns None, not an int"),
    "usage returns floats": (
        "kv",
        "0, self.left)",
        "0.0, self.left)",
        r"Mine: usage returns Usage\(.*, not a Usage of ints",
    ),
    "lookup returns None": ("kv", "", method("lookup(self, request)", "pass"), "Mine: lookup returns None, not a Hit"),
    "a capacity is a float": (
        "kv",
        "self.held, self.left",
        "self.capacity_tokens *= 1.0; self.held, self.left",
        r"Mine: capacity_tokens is 4800.0, not an int|Mine: __init__ raises TypeError: int object expected; got float",
    ),
    "an allocator without super().__init__": (
        "kv",
        "super().__init__(params, memory)",
        "self.capacity_tokens = 100",
        "Mine: attribute params is missing: its __init__",
    ),
    "shares is a number": (
        "kv",
        "def can_admit",
        "shares = 1\n    def can_admit",
        "Mine: shares is 1, not True or False",
    ),
    "copied_tokens become a float": (
        "kv",
        "self.held[request] = 0",
        "self.held[request] = 0; self.copied_tokens += 1.5",
        "Mine at 0 ns.* int",
    ),
    "copied_tokens fall": (
        "kv",
        "self.held[request] = 0",
        "self.held[request] = 0; self.copied_tokens -= 1",
        "Mine at 0 ns: copied_tokens is -3, not an int that never decreases",
    ),
    "free raises": (
        "kv",
        "self.left += self",
        "1 / 0; self.left += self",
        r"Mine at \d+ ns: free raises ZeroDivisionError",
    ),
    "memory does not add up": (
        "kv",
        "return Usage(self",
        "return Usage(1 + self",
        r"Mine at \d+ ns: AssertionError: Usage.* do not add up",
    ),
    "route returns None": ("router", "return 0", "pass", "Mine: route returns None, not an int"),
    "route returns a float": ("router", "return 0", "return 0.0", "Mine: route returns 0.0, not an int"),
    "route raises": ("router", "return 0", "return views[7]", "Mine at 0 ns: route raises IndexError"),
    "limit returns a float": (
        "speculation",
        "",
        method("limit(self, batch)", "return 2.0"),
        "Mine: limit returns 2.0, not an int",
    ),
    "max_drafts is a float": (
        "speculation",
        "",
        method("__init__(self, *args)", "super().__init__(*args)", "self.max_drafts = 2.0"),
        "Mine: max_drafts is 2.0, not an int",
    ),
    "accepted returns None": ("acceptance", "return drafts", "drafts", "Mine: accepted returns None, not an int"),
}


@pytest.mark.parametrize(("kind", "old", "new", "reason"), WRONG.values(), ids=WRONG)
def test_what_a_contract_does_not_say_is_refused_by_name(
    kind: str, old: str, new: str, reason: str, tmp_path: Path
) -> None:
    text = TEXTS[kind]
    assert old in text
    described = world(tmp_path, kind, text.replace(old, new, 1) if old else text + new)
    with pytest.raises(PolicyError) as error:
        described.run("reference", check=True)
    assert re.match(reason, str(error.value)), str(error.value)


@pytest.mark.parametrize(
    ("kind", "old", "new", "reason"),
    [
        ("scheduler", "def plan", "def plans", "Mine needs a method plan, as every Scheduler does"),
        ("kv", "def slots", "def slot", "Mine needs a method slots, as every KVAllocator does"),
        ("router", "def route", "def send", "Mine needs a method route, as every Router does"),
        ("scheduler", "def plan", "waiting = []\n    def plan", r"Mine.waiting hides .* set self.waiting in __init__"),
        ("kv", "def slots", "on_event = None\n    def slots", r"Mine.on_event hides .* set self.on_event in"),
        ("kv", "def slots", "block_size = 1\n    def slots", r"Mine.block_size hides .* set self.block_size in"),
    ],
)
def test_a_class_that_cannot_keep_its_contract_is_refused_when_it_is_named(
    kind: str, old: str, new: str, reason: str, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(TEXTS[kind].replace(old, new, 1))
    registry: Registry[Any] = next(r for r in REGISTRIES if r.kind == kind)
    with pytest.raises(UserError, match=reason):
        registry.resolve(f"{file}:Mine")


def test_a_list_is_not_enough_where_the_base_class_wants_a_deque(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from servesim.policies.scheduling.vllm import Vllm\n"
        "class Mine(Vllm):\n"
        "    def on_arrival(self, request):\n"
        "        self.waiting = [*self.waiting, request]\n"
    )
    with pytest.raises(PolicyError, match=r"Mine at 0 ns: AttributeError: 'list' object has no attribute 'popleft'"):
        replace(WORLD, scheduler=f"{file}:Mine").run()


def test_a_method_is_held_to_its_contract_once_however_often_its_class_is_named(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(SCHEDULER + method("steady(self, plan)", "return 0") + "\nclass Other(Mine):\n    pass\n")
    mine, _ = schedulers.resolve(f"{file}:Mine")
    steady = mine.steady
    for name in ("Mine", "Other", "Mine"):
        assert schedulers.resolve(f"{file}:{name}")[0].steady is steady


def test_policies_of_servesim_are_left_as_they_are() -> None:
    classes = [registry.resolve(name)[0] for registry in REGISTRIES for name in registry.names()]
    ours = [cls for cls in classes if cls.__module__.startswith("servesim.")]  # not those of other tests
    assert len(ours) >= 30
    assert not any(is_own(cls) or cls in _adopted for cls in ours)


def test_a_class_of_the_standard_library_that_a_policy_is_made_from_is_left_as_it_is(tmp_path: Path) -> None:
    """UserList has a method that is called like an allocator's."""
    file = tmp_path / "mine.py"
    base = "from collections import UserList\nfrom servesim.policies.kv.paged import Paged\n"
    file.write_text(base + "class Mine(Paged, UserList): pass\n")
    extend = UserList.extend
    kv_allocators.resolve(f"{file}:Mine")
    assert UserList.extend is extend


@pytest.mark.medium
@pytest.mark.parametrize("mistake", ["pass", r"raise ValueError('no\n\nluck')"])
def test_on_the_command_line_it_is_one_line_and_nothing_is_written(mistake: str, tmp_path: Path) -> None:
    file, out = tmp_path / "mine.py", tmp_path / "out"
    file.write_text(SCHEDULER + method("num_waiting(self)", mistake))
    command = [sys.executable, "-m", "servesim", "run", "--trace", "synth:rate=5,prompt=64,output=8", "--requests", "5"]
    command += ["--model", "llama-3.1-8b", "--gpu", "h200", "--scheduler", f"{file}:Mine", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("error: Mine")
    assert done.stderr.count("\n") == 1
    assert not out.exists()


UNCHECKED = {
    *("Any", "T", "float", "str"),
    *("Plan", "Sequence[Request] | None", "Iterator[Request]", "DraftModel | None", "list[Batch]"),
    *("Part | None", "Served | None", "tuple[str, ...]", "frozenset[str]", "Hashable"),
}
"""Annotations of results that are handed on as they are: whoever gets them notices what is wrong."""


@pytest.mark.parametrize("contract", CONTRACTS)
def test_every_verb_of_a_contract_whose_return_could_be_mistaken_is_held(contract: type[Any]) -> None:
    verbs = {name for name in vars(contract) if not name.startswith("_") and callable(getattr(contract, name))}
    terms = terms_of(contract)
    assert {*terms.returns} >= verbs - {"Params", "Settings", "Options"}
    assert {*terms.returns.values()} <= {*_settlers()} | UNCHECKED


def test_terms_are_read_from_the_annotations_of_a_contract() -> None:
    scheduler, allocator = terms_of(Scheduler), terms_of(KVAllocator)
    assert scheduler.returns["num_waiting"] == allocator.returns["slots"] == "int"
    assert allocator.required == ["can_admit", "admit", "grow", "free", "slots", "usage"]
    assert terms_of(Scaler).required == ["every_s", "wanted"]
    assert {name: kind for name, (kind, _) in scheduler.made.items()} == {
        **dict.fromkeys(("params", "limits", "kv", "waiting"), object),
        "running": list,
    }
    assert {name: kind for name, (kind, _) in allocator.has.items()} == {
        **dict.fromkeys(("name", "paper"), str),
        **dict.fromkeys(("needs", "supports"), frozenset),
        **dict.fromkeys(("shares", "reserves", "grouped"), bool),
        **dict.fromkeys(("held_tokens", "copied_tokens"), int),
    }
    assert terms_of(Router).made == {}, "a router need not call super().__init__"


def test_exceptions_are_blamed_where_verbs_are_called_from_many_places() -> None:
    assert {*_BLAMED} <= {contract.__name__ for contract in CONTRACTS}


def test_parameters_that_are_no_dataclass_are_refused_in_one_line() -> None:
    class Params:
        slack: int = 4

    with pytest.raises(UserError, match="router mine: Params is not a dataclass: write @dataclass"):
        build_params("router mine", Params, {})


BASED = """
from dataclasses import dataclass
from servesim.policies.scheduling.vllm import Vllm
@dataclass(frozen=True)
class Slack:
    slack: int = 4
class Mine(Vllm):
    Params = Slack
"""


def test_parameters_without_those_that_the_base_reads_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(BASED)
    with pytest.raises(UserError, match=r"Mine.Params does not derive from Vllm.Params, .*: write class Params\(Vllm"):
        schedulers.resolve(f"{tmp_path}/mine.py:Mine")


def test_a_policy_that_hands_its_base_other_parameters_may_have_any(tmp_path: Path) -> None:
    init = method("__init__(self, params, limits, kv)", "super().__init__(Vllm.Params(), limits, kv)")
    served(world(tmp_path, "scheduler", BASED + init), "fast")
    derived = BASED.replace("class Slack:", "class Slack(Vllm.Params):")
    served(world(tmp_path, "scheduler", derived), "fast")
    (tmp_path / "mine.py").write_text(f"{BASED}{init}class Further(Mine):\n    Params = type('P', (Slack,), {{}})\n")
    schedulers.resolve(f"{tmp_path}/mine.py:Further")


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (
            "scheduler",
            "from servesim.policies.scheduling.ordered import Ordered\nclass Mine(Ordered):\n",
            "Mine: rank returns None, not a number",
        ),
        (
            "kv",
            "from servesim.policies.kv.evicting import Evicting\nclass Mine(Evicting):\n",
            "Mine: rank returned None, not a number or tuple that can be compared",
        ),
    ],
)
def test_a_rank_that_is_none_is_its_author_s(kind: str, text: str, message: str, tmp_path: Path) -> None:
    described = world(tmp_path, kind, text + method("rank(self, *args)", "pass"))
    described.trace = toy_trace([0, 1], [16, 16], [4, 4], runs=[[(1, 16)], [(2, 16)]])
    with pytest.raises(PolicyError, match=message):
        described.run()
