"""A second generator of worlds, drawn by numbers instead of Hypothesis: what the first one seldom draws.

Content that few rows share, cut at odd places; blocks of one token; requests of one token; many requests at the same
instant; every router over several replicas; every scheduler and allocator, some of them as a user's subclass that
changes nothing. Each world runs in both modes, which must agree in everything they leave behind.

`python -m tests.support.other_worlds [FIRST COUNT]` runs worlds by number and prints those that differ.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np

from servesim.contracts import kv_allocators, routers, schedulers
from servesim.engine.fast.core import FastCore
from servesim.errors import PolicyError, UserError
from tests.property.test_fast_equals_reference import compared
from tests.support.worlds import ToyCost, World, toy_trace

NEED_MORE = ("scripted", "manual", "prefix-oracle", "vllm-dp")
"""Policies that need a file, a session, the whole future, or ranks."""
SUBCLASS = (
    "from servesim.contracts import {registry}\nBase, _ = {registry}.resolve({name!r})\nclass Mine(Base):\n    pass\n"
)


@cache
def folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="other-worlds-"))


def policy(rng: np.random.Generator, registry: str, names: list[str]) -> str:
    """Return one of the names, one time in four as a subclass in a file of a user's own."""
    name = str(rng.choice(names))
    if rng.random() > 0.25:
        return name
    path = folder() / f"{registry}_{name.replace('-', '_')}.py"
    if not path.is_file():
        path.write_text(SUBCLASS.format(registry=registry, name=name), encoding="utf-8")
    return f"{path}:Mine"


def content(rng: np.random.Generator, prompts: list[int], outputs: list[int]) -> list[list[tuple[int, int]]]:
    """Return the runs of each prompt: a few texts, cut anywhere, in any order, and now and then an earlier answer."""
    runs: list[list[tuple[int, int]]] = []
    for row, prompt in enumerate(prompts):
        found, left = [], prompt
        if row and rng.random() < 0.3:
            earlier = int(rng.integers(row))
            found = [*runs[earlier], (-earlier - 1, int(rng.integers(1, outputs[earlier] + 1)))]
            left = int(rng.integers(0, 3))
        while left:
            length = int(min(left, rng.integers(1, 40)))
            found.append((int(rng.integers(1, 4)) if rng.random() < 0.7 else 100 + row, length))
            left -= length
        prompts[row] = sum(length for _, length in found)
        runs.append(found)
    return runs


def draw(number: int) -> World:
    """Return the world of a number."""
    rng = np.random.default_rng([37, number])
    n = int(rng.integers(1, 28))
    prompts = np.where(rng.random(n) < 0.3, 1, rng.integers(1, 90, n)).tolist()
    outputs = np.where(rng.random(n) < 0.3, 1, rng.integers(1, 60, n)).tolist()
    runs = content(rng, prompts, outputs)
    instants = np.sort(rng.integers(0, 200_000, int(rng.integers(1, 6))))
    trace = toy_trace(
        np.sort(rng.choice(instants, n)).tolist(),
        prompts,
        outputs,
        caps=[most + int(rng.choice([0, 0, 1, 9])) for most in outputs],
        priorities=rng.integers(0, 3, n).tolist(),
        runs=runs if rng.random() < 0.8 else None,
        names=tuple(f"r{row}" for row in range(n)) if rng.random() < 0.5 else None,
    )
    replicas = int(rng.integers(1, 5))
    scheduler = policy(rng, "schedulers", schedulers.names())
    ahead = "async" in schedulers.resolve(scheduler)[0].supports and bool(rng.random() < 0.5)
    kv = policy(rng, "kv_allocators", [name for name in kv_allocators.names() if name not in NEED_MORE])
    longest = max(prompts) + max(outputs) + 9
    block = int(rng.choice([1, 1, 2, 3, 16]))
    need = longest // block + 2
    names = [name for name in routers.names() if name not in NEED_MORE]
    return World(
        trace,
        kv=kv,
        num_blocks=int(need * rng.choice([1, 1, 2, 5])),
        block_size=block,
        scheduler=scheduler,
        max_num_seqs=int(rng.choice([1, 2, 5, 256])),
        max_num_batched_tokens=int(rng.choice([8, 40, 2048])),
        max_model_len=longest if "contiguous" in kv else int(rng.choice([1 << 20, longest])),
        depth=int(rng.choice([2, 3])) if ahead else int(rng.choice([1, 1, 2])),
        asynchronous=ahead,
        replicas=replicas,
        router=policy(rng, "routers", names) if replicas > 1 else "round-robin",
        cost=ToyCost(exposed=int(rng.choice([0, 300])), overlapped=int(rng.choice([0, 50]))),
    )


def outcome(number: int) -> str:
    """Run a world in both modes. Return "same", or why it cannot run in either, or what differs."""
    world = draw(number)
    try:
        compared(world)
    except UserError as error:
        return f"refused: {str(error).partition(':')[0]}"
    except PolicyError as error:
        return f"stopped: {str(error).rpartition(': ')[2][:60]}"
    except Exception as error:
        return f"DIFFERS: world {number}: {world.told()}: {type(error).__name__}: {str(error)[:200]}"
    return "same"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int, nargs="?", default=0)
    parser.add_argument("count", type=int, nargs="?", default=20_000)
    options = parser.parse_args()
    first, count = options.first, options.count
    begin = time.process_time()
    found = Counter(outcome(number) for number in range(first, first + count))
    for what, times in found.most_common():
        print(f"{times:6}  {what}")
    differ = sum(times for what, times in found.items() if what.startswith("DIFFERS"))
    build = "compiled" if FastCore.__module__ and not hasattr(FastCore.plan, "__code__") else "pure"
    print(f"{count} worlds, {build}: {differ} differ, {time.process_time() - begin:.0f} CPU s")
    sys.exit(bool(differ))


if __name__ == "__main__":
    main()
