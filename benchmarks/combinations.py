"""Combinations of features: `python -m benchmarks.combinations [--most N] [--write]`.

Asks the program itself: every combination of the options below is run with 30 requests, in both modes, or refused. It
prints what each pair does and how many combinations of more options run; `--write` writes docs/combinations.md. A
combination that ends in any other way is a bug, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import servesim
from servesim.errors import UserError

PAGE = Path(__file__).resolve().parents[1] / "docs" / "combinations.md"
TRACE = "synth:rate=20,prompt=300,output=30,prefix=shared(groups=2,length=128)"
BASE: dict[str, Any] = {
    "trace": TRACE,
    "requests": 30,
    "model": "qwen3-30b-a3b",
    "gpu": "h200",
    "kernel_tables": "roofline",
    "replicas": 2,
    "router": "least-outstanding",
    "engine": {"num_gpu_blocks": 400},
}
ROUTERS = ("reported views", "KV events", "wrapper")
"""Options of which a run has at most one."""
FAILURES = ["crash:replica=0,at=0.3,restart=0.2", "slow:replica=1,at=0.5,until=1,factor=3"]
OPTIONS: dict[str, dict[str, Any]] = {
    "apart": {"pd": "1x1:1x1"},
    "scaler": {"scaler": "keda:target=2,min=1,max=3", "start": {"compile_s": 0.01, "graphs_s": 0, "warm_up_s": 0}},
    "failures": {
        "cluster": {"failures": ["crash:replica=0,at=0.3,restart=0.2", "slow:replica=1,at=0.5,until=1,factor=3"]}
    },
    "offload": {"offload": "vllm:cpu=1GiB"},
    "ranks": {"dp": 2},
    "stages": {"pp": 2},
    "drafts": {"speculation": "eagle3"},
    "reported views": {"router": "least-requests:counts=reported", "cluster": {"report_every_s": 0.05}},
    "KV events": {"router": "dynamo-kv"},
    "wrapper": {"router": "concurrency-limit:router=round-robin,max_concurrent_requests=12"},
    "samples": {"trace": f"{TRACE},n=2"},
    "streamed": {"stream": True},
}
MEANING = {
    "apart": "prefill and decode on different replicas",
    "scaler": "an autoscaler for each pool",
    "failures": "a crash, and a slow replica",
    "offload": "KV in host memory (vLLM's connector)",
    "ranks": "two data-parallel ranks a replica",
    "stages": "two pipeline stages",
    "drafts": "speculative decoding (EAGLE-3)",
    "reported views": "a router by reports 50 ms old",
    "KV events": "a router by the engines' KV events",
    "wrapper": "a limit on requests in flight in front of another router",
    "samples": "two samples of each prompt",
    "streamed": "a trace that is not held in memory",
}


class Outcome(NamedTuple):
    """How a combination of options ends."""

    refused: str = ""
    """Line with which the program refuses it, or empty if it runs."""
    broken: str = ""
    """Description of what is wrong, which is a bug, or empty."""


def settings_of(names: Sequence[str]) -> dict[str, Any]:
    """Return the scenario that has these options."""
    found = dict(BASE)
    for name in names:
        for key, value in OPTIONS[name].items():
            found[key] = {**found.get(key, {}), **value} if isinstance(value, dict) else value
    if "apart" in names:
        del found["replicas"]
    return found


def outcome(names: Sequence[str]) -> Outcome:
    """Run a combination in both modes and compare them, or return the line with which the program refuses it."""
    fast = _end(settings_of(names), "fast")
    if isinstance(fast, Outcome):
        return fast
    plain = _end(settings_of(names), "reference")
    if isinstance(plain, Outcome):
        return Outcome(broken=f"only in reference mode: {plain.refused or plain.broken}")
    return Outcome(broken=_unlike(fast, plain) or _unbalanced(fast))


def _end(settings: Mapping[str, Any], mode: str) -> servesim.Result | Outcome:
    try:
        return servesim.simulate(settings, mode=mode, conclude=False)
    except UserError as error:
        return Outcome(refused=str(error)) if "\n" not in str(error) else Outcome(broken=f"several lines: {error}")
    except Exception as error:
        return Outcome(broken=f"{type(error).__name__}: {error}")


def _unlike(fast: servesim.Result, plain: servesim.Result) -> str:
    tables = fast.scenario.stream or fast.requests.equals(plain.requests)
    figures = [
        {key: value for key, value in result.summary.items() if key not in ("scenario", "provenance")}
        for result in (fast, plain)
    ]
    unlike = [key for key, value in figures[0].items() if figures[1].get(key) != value]
    return "" if tables and not unlike else f"modes differ: {', '.join(unlike) or 'requests'}"


def _unbalanced(result: servesim.Result) -> str:
    """Return what is wrong with the sums of requests, if anything."""
    found = result.summary["requests"]
    ended = found["completed"] + found["rejected"] + found["aborted"]
    wrong = ended != found["arrived"] or found["arrived"] + found["unsent"] - found["retries"] != BASE["requests"]
    return f"requests do not add up: {found}" if wrong else ""


def all_of(most: int) -> Iterator[tuple[str, ...]]:
    """Yield all combinations of at most `most` options, the small ones first."""
    plain = [name for name in OPTIONS if name not in ROUTERS]
    for count in range(most + 1):
        for router in ((), *((name,) for name in ROUTERS)):
            for names in combinations(plain, count - len(router)) if count >= len(router) else ():
                yield tuple(name for name in OPTIONS if name in (*names, *router))


def ask(most: int, processes: int = 1) -> dict[tuple[str, ...], Outcome]:
    """Return the outcomes of all combinations of at most `most` options."""
    names = [*all_of(most)]
    if processes == 1:
        return dict(zip(names, map(outcome, names), strict=True))
    with ProcessPoolExecutor(processes) as pool:
        return dict(zip(names, pool.map(outcome, names, chunksize=8), strict=True))


def page(found: Mapping[tuple[str, ...], Outcome]) -> str:
    """Return docs/combinations.md."""
    lines = [*dict.fromkeys(end.refused for end in found.values() if end.refused)]
    number = {line: str(at + 1) for at, line in enumerate(lines)}
    head = ["", *(str(at + 1) for at in range(len(OPTIONS)))]
    rows = [_pairs(found, name, number) for name in OPTIONS]
    counted = Counter((len(names), not end.refused) for names, end in found.items())
    sizes = sorted({len(names) for names in found})
    return TEXT.format(
        options="\n".join(f"{at + 1}. **{name}**: {MEANING[name]}" for at, name in enumerate(OPTIONS)),
        matrix="\n".join([_row(head), _row(["---"] * len(head)), *rows]),
        counts="\n".join(_row([size, counted[size, True], counted[size, False]]) for size in sizes),
        runs=sum(not end.refused for end in found.values()),
        all=len(found),
        lines="\n".join(f"{at + 1}. `{line}`" for at, line in enumerate(lines)),
        more=_more(found),
    )


def _row(cells: Sequence[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _pairs(found: Mapping[tuple[str, ...], Outcome], name: str, number: Mapping[str, str]) -> str:
    """Return the row of an option: with each other one `+` if the pair runs, else the number of the line that refuses
    it."""
    cells = []
    for other in OPTIONS:
        pair = tuple(option for option in OPTIONS if option in (name, other))
        cells.append(("+" if not found[pair].refused else number[found[pair].refused]) if pair in found else "")
    return _row([f"{[*OPTIONS].index(name) + 1} {name}", *cells])


def _more(found: Mapping[tuple[str, ...], Outcome]) -> str:
    """Return which combinations of three or more options are refused although all smaller ones run."""
    least = [
        names
        for names, end in found.items()
        if len(names) > 2 and end.refused and all(not found[few].refused for few in combinations(names, len(names) - 1))
    ]
    if not least:
        return "A combination of which each pair runs, runs."
    return "Refused although all of its pairs run: " + "; ".join(" + ".join(names) for names in least) + "."


TEXT = """# What can be combined

Written by `python -m benchmarks.combinations --write`, which asks the program: each combination of the options below is
run with 30 requests in both modes, which must agree, or ends with a line that says why not. A test asks again.

{options}

The three kinds of routers exclude one another. `+`: the pair runs; a number: the line below with which it is refused.

{matrix}

Of {all:,} combinations, {runs:,} run.

| options | run | refused |
|---|---|---|
{counts}

{more}

Lines with which the program refuses:

{lines}
"""


def main() -> None:
    """Print or write the page; end with exit code 1 if a combination breaks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=len(OPTIONS), help="most options at once")
    parser.add_argument("--write", action="store_true", help="write docs/combinations.md")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    found = ask(asked.most, asked.processes)
    text = page(found)
    if asked.write:
        PAGE.write_text(text, encoding="utf-8")
    print(text)
    broken = {names: end.broken for names, end in found.items() if end.broken}
    for names, what in broken.items():
        print(f"BROKEN {' + '.join(names)}: {what}", file=sys.stderr)
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
