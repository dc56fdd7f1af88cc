"""No outcome of a test depends on how fast the machine is, so none fails because it is busy."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIVE = ROOT / "tests" / "live"
"""Tests of real clients and servers, which `make test` leaves out: they live in the time of the wall."""
CLOCKS = {f"{name}{unit}" for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time")
          for unit in ("", "_ns")}  # fmt: skip
FIGURES = {"loop_cpu_s", "startup_cpu_s", "total_cpu_s", "cpu_s", "wall_s", "startup_wall_s"}
"""What results and benchmarks say of the time they took."""
LEAST_S = 100
"""Shortest time limit: it keeps a test from hanging, and ends none that is only slow."""
ALLOWED = {
    "tests/support/hostile.py: fault: compares process_time": "runaway readers: a hundred times what the slowest takes",
    "tests/support/mutants.py: run: compares monotonic": "no test: a mutant that hangs is ended",
    "tests/support/mutants.py: verdict: compares monotonic": "no test: whether a mutant was ended so",
    "tests/unit/experiments/measure/test_measure.py: test_every_wrong_stream_has_words_of_its_own: timeout_s of 0.5 s":
        "of a server that never answers, by its name",
}  # fmt: skip
TOLD = re.compile(rf"\b({'|'.join(sorted(CLOCKS | FIGURES))}|timeout|timeout_s|sleep)\b|\.(wait|join)\([0-9]")
"""A word of what is looked for: most files have none."""
Found = tuple[int, str]


def name_of(node: ast.AST) -> str:
    """Return the last part of a name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def clock_in(node: ast.AST, held: dict[str, str]) -> str:
    """Return the clock that an expression reads, or that a name in it holds: "" where there is none."""
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and name_of(part.func) in CLOCKS:
            if isinstance(part.func, ast.Name) or name_of(part.func.value) == "time":  # type: ignore[attr-defined]
                return name_of(part.func)
        elif isinstance(part, ast.Name) and part.id in held:
            return held[part.id]
    return ""


def seconds(node: ast.AST | None) -> float | None:
    """Return a number that is written there."""
    number = isinstance(node, ast.Constant) and isinstance(node.value, (int, float))
    return node.value if number else None  # type: ignore[union-attr, return-value]


def comparisons(body: ast.AST) -> Iterator[Found]:
    """Yield what compares a clock, or what a run took with a number of seconds."""
    held: dict[str, str] = {}
    for part in ast.walk(body):
        if isinstance(part, ast.Assign) and (clock := clock_in(part.value, held)):
            held |= {target.id: clock for target in part.targets if isinstance(target, ast.Name)}
        if isinstance(part, ast.Compare):
            if clock := clock_in(part, held):
                yield part.lineno, f"compares {clock}"
            keys = {c.value for c in ast.walk(part) if isinstance(c, ast.Constant) and isinstance(c.value, str)}
            ordered = any(isinstance(op, (ast.Lt, ast.LtE, ast.Gt, ast.GtE)) for op in part.ops)
            if (own := keys & FIGURES) and ordered and any(seconds(side) for side in (part.left, *part.comparators)):
                yield part.lineno, f"compares {min(own)}"


def waited_for(body: ast.AST) -> set[str]:
    """Return names of threads, processes and events, whose `join` and `wait` take seconds."""
    kinds = ("Thread(", "Process(", "Popen(", "Event(")
    made = [part for part in ast.walk(body) if isinstance(part, ast.Assign)]
    targets = [t for part in made if any(kind in ast.unparse(part.value) for kind in kinds) for t in part.targets]
    return {name_of(name) for target in targets for name in ast.walk(target)} - {""}


def limits(body: ast.AST) -> Iterator[Found]:
    """Yield time limits that end what is only slow, and pauses after which something is taken for done."""
    waiting, real = waited_for(body), "stub_server" in ast.unparse(body)
    polls = {id(part) for loop in ast.walk(body) if isinstance(loop, ast.While) for part in ast.walk(loop)}
    for part in ast.walk(body):
        given: list[tuple[str, ast.AST | None]] = []
        if isinstance(part, ast.Dict):
            given += [(str(key.value), v) for key, v in zip(part.keys, part.values, strict=True)
                      if isinstance(key, ast.Constant)]  # fmt: skip
        if isinstance(part, ast.Call):
            given += [(key.arg or "", key.value) for key in part.keywords]
            of = name_of(part.func.value) if isinstance(part.func, ast.Attribute) else ""
            if name_of(part.func) in ("wait", "join") and of in waiting:
                given += [("timeout", argument) for argument in part.args]
            if ast.unparse(part.func) == "time.sleep" and id(part) not in polls:
                yield part.lineno, f"sleeps {ast.unparse(part.args[0])} s"
        for name, value in given:
            limit = seconds(value) if name == "timeout" or (name == "timeout_s" and real) else None
            if limit is not None and limit < LEAST_S:
                yield part.lineno, f"{name} of {limit} s"


def found_in(source: str) -> list[Found]:
    """Return what depends on the machine's speed, by line, with the function that it stands in."""
    if not TOLD.search(source):
        return []
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]

    def inside(line: int) -> str:
        of = [f for f in functions if f.lineno <= line <= (f.end_lineno or 0)]
        return f"{max(of, key=lambda f: f.lineno).name}: " if of else ""

    whole = {found for body in (tree, *functions) for found in comparisons(body)} | set(limits(tree))
    return [(line, inside(line) + what) for line, what in sorted(whole)]


@pytest.mark.medium
def test_no_test_looks_at_a_clock() -> None:
    paths = sorted({*(ROOT / "tests").rglob("*.py")} - {*LIVE.rglob("*.py")})
    found = {f"{path.relative_to(ROOT)}: {what}": line for path in paths
             for line, what in found_in(path.read_text(encoding="utf-8"))}  # fmt: skip
    assert {what: line for what, line in found.items() if what not in ALLOWED} == {}
    assert sorted(set(ALLOWED) - set(found)) == [], "these are gone"


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("began = time.monotonic()\n work()\n assert time.monotonic() - began < 5", "compares monotonic"),
        ("began = perf_counter()\n took = perf_counter() - began\n assert took < 1", "compares perf_counter"),
        ("assert result.timing['loop_cpu_s'] < 120", "compares loop_cpu_s"),
        ("process.communicate(timeout=30)", "timeout of 30 s"),
        ("first = threading.Thread(target=work)\n first.join(10)", "timeout of 10 s"),
        ("began, answers = threading.Event(), []\n assert began.wait(30)", "timeout of 30 s"),
        ("stub_server.measured(timeout_s=0.5)", "timeout_s of 0.5 s"),
        ("stub_server.measured(**{'timeout_s': 0.5})", "timeout_s of 0.5 s"),
        ("time.sleep(1)\n assert done()", "sleeps 1 s"),
    ],
)
def test_the_ways_that_a_test_depends_on_speed_are_found(body: str, what: str) -> None:
    assert [said for _, said in found_in(f"def test():\n {body}\n")] == [f"test: {what}"]


@pytest.mark.parametrize(
    "body",
    [
        "while not done():\n  time.sleep(0.05)",
        "process.communicate(timeout=300)",
        "assert 0 < figures['loop_cpu_s'] < figures['total_cpu_s']",
        "assert record.time() < 5",
        "group.join(9)",
        "router(timeout_s=0.5)",
        "assert rows[0]['loop_cpu_s'] == 1.25",
    ],
)
def test_waiting_for_what_comes_and_guards_against_hanging_are_let_pass(body: str) -> None:
    assert found_in(f"def test():\n {body}\n") == []
