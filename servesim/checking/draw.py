"""Random small worlds by number: a number always gives the same world, whatever else is drawn.

The worlds have few requests, tight or ample memory, bursts and lulls, prompts with shared prefixes, clients that give
up, requests that follow others, several samples, drafts, one or two steps in flight, one or several replicas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from servesim.checking.subject import Subject
from servesim.checking.world import ToyCost, World, toy_trace
from servesim.contracts import check_samples, kv_allocators, schedulers, speculators
from servesim.contracts.feature import Feature, installed
from servesim.draws import uniform, uniform_one
from servesim.errors import UserError
from servesim.run.scenario import Scenario
from servesim.workload.trace import After, Samples, Trace
from servesim.workload.workload import Clients

SCHEDULERS = ("vllm", "sarathi:chunk_size=48", "continuous", "continuous:preemption_mode=swap", "sglang", "selective")
ALLOCATORS = (
    "paged",
    "prefix-hash",
    "prefix-hash",
    "prefix-radix",
    "prefix-radix:page_size=4,eviction_policy=lfu",
    "contiguous:reservation=oracle,fit=best,compaction=1",
    "hybrid",
)
ROUTERS = (
    "round-robin",
    "least-outstanding",
    "session-hash",
    "random",
    "least-requests:ties=random",
    "least-requests:counts=reported",
    "power-of-two",
)
SPECULATION = ("eagle3:k=3", "ngram:k=4", "draft-model:k=2,model=llama-3.2-1b", "medusa:k=2,width=2")
ACCEPTANCE = ("independent:alpha=0.7", "positions:marginal=0.8/0.4/0.3", "independent:alpha=0")


class Draws:
    """Random draws for one world, one stream per purpose."""

    def __init__(self, number: int) -> None:
        self._number = number

    def one(self, purpose: str, options: Sequence[Any]) -> Any:
        """Return one of the options."""
        return options[int(uniform_one(0, f"check {purpose}", self._number) * len(options))]

    def many(self, purpose: str, count: int, options: Sequence[Any]) -> list[Any]:
        """Return `count` of the options, each drawn independently."""
        shares = uniform(0, f"check {purpose}", self._number, np.arange(count))
        return [options[int(share * len(options))] for share in shares]


def draw(number: int, subject: Subject) -> World:
    """Return world `number` with the policy in it, and sometimes a feature. Low numbers have few requests."""
    draws, world = Draws(number), plain_world(number, subject)
    feature = draws.one("feature", [*[None] * (1 + len(installed())), *installed()])
    return world if feature is None else with_features(world, [feature], draws)


def plain_world(number: int, subject: Subject) -> World:
    """Return world `number` without features."""
    draws = Draws(number)
    trace = _trace(draws, most=2 + number // 2)
    block_size = draws.one("block size", [16, 16, 16, 4])
    num_blocks = draws.one("blocks", [13, 18, 30, 400]) * 16 // block_size
    longest = int((trace.prompt_len + trace.max_tokens).max())
    policies: dict[str, Any] = {
        "scheduler": draws.one("scheduler", SCHEDULERS),
        "kv": draws.one("kv", ALLOCATORS),
        "router": draws.one("router", ROUTERS),
        "acceptance": draws.one("acceptance", ACCEPTANCE),
    }
    if subject.kind in ("speculation", "acceptance"):
        policies["scheduler"] = "vllm"
    policies |= {subject.kind: subject.spec}
    replicas = draws.one("replicas", [2, 3, 4] if subject.kind == "router" else [1, 1, 2])
    policies.setdefault("speculation", draws.one("drafts", [*[""] * 4 * (subject.kind != "acceptance"), *SPECULATION]))
    world = World(
        trace,
        **policies,
        num_blocks=num_blocks,
        block_size=block_size,
        host_blocks=draws.one("host blocks", [0, 4, 1000]),
        windows=draws.one("windows", [(None, 40), (33,), (None, 16, 50), (None, 2, 2)])
        if policies["kv"] == "hybrid"
        else (None,),
        max_num_seqs=draws.one("sequences", [1, 3, 16]),
        max_num_batched_tokens=draws.one("budget", [16, 64, 512]),
        max_model_len=min(draws.one("longest", [1 << 20, 1 << 20, longest, 120]), (num_blocks - 1) * block_size),
        replicas=replicas,
        cost=ToyCost(
            fixed=draws.one("fixed", [1, 1000, 20_000]),
            token=draws.one("token", [0, 100]),
            context=draws.one("context", [0, 1, 13]),
            overlapped=draws.one("overlapped", [0, 0, 700]),
            exposed=draws.one("exposed", [0, 0, 51]),
        ),
    )
    return _samples(draws, _clients(draws, _ahead(draws, world)))


def with_features(world: World, features: Sequence[Feature], draws: Draws) -> World:
    """Return the world with those of the given features that are compatible with it, its policies and each other."""
    if "future" in kv_allocators.resolve(world.kv)[0].needs:
        return world
    present = {"samples"} if world.trace.samples is not None else set()
    present |= {"speculation"} if world.speculation else set()
    there: list[Feature] = []
    for feature in features:
        if present & {*refused_by(feature)} or any(feature.name in refused_by(other) for other in there):
            continue
        found = feature.in_world(world, draws)
        if found is not world:
            world = replace(found, featured=(*world.featured, feature.name))
            there.append(feature)
            present.add(feature.name)
    return world


def refused_by(feature: Feature) -> Mapping[str, str]:
    """Return what a feature cannot be combined with under default settings."""
    return feature.refuses(Scenario.model_construct())


def _trace(draws: Draws, most: int) -> Trace:
    """Return a trace of at most `most` requests, but never more than 24."""
    n = draws.one("requests", range(1, min(most, 24) + 1))
    rate = draws.one("rate", [0, 500, 5_000, 50_000])
    prompts = draws.many("prompts", n, [*range(1, 21), *range(50, 91)])
    outputs = draws.many("outputs", n, [*range(1, 7), *range(1, 81, 3)])
    runs: list[list[tuple[int, int]]] | None = None
    if draws.one("shared", [True, False]):
        runs = []
        heads = [draws.many(what, n, options) for what, options in (("heads", [16, 40, 64]), ("families", [1, 2]))]
        turns, said = draws.many("turns", n, range(4)), draws.many("earlier", n, range(n))
        for i, prompt in enumerate(prompts):
            head = min(heads[0][i], prompt)
            runs.append([run for run in ((heads[1][i], head), (100 + i, prompt - head)) if run[1]])
            if said[i] < i and not turns[i]:  # a later turn: an earlier prompt, its answer, and more
                j = said[i]
                runs[i] = [*runs[j], (-j - 1, outputs[j]), (100 + i, 1 + prompt % 9)]
                prompts[i] = sum(length for _, length in runs[i])
    return toy_trace(
        np.cumsum(draws.many("gaps", n, range(2 * rate + 1))).tolist(),
        prompts,
        outputs,
        caps=[a + b for a, b in zip(outputs, draws.many("spare", n, [0, 0, 1, 7]), strict=True)],
        priorities=draws.many("priorities", n, range(3)),
        runs=runs,
        names=tuple(f"request-{i}" for i in range(n)),
        labels={
            "session": tuple(draws.many("sessions", n, ["", "s1", "s2", "s3"])),
            "tenant": tuple(draws.many("tenants", n, ["t1", "t2"])),
            "class": tuple(draws.many("classes", n, ["fast", "slow"])),
        },
    )


def _ahead(draws: Draws, world: World) -> World:
    """Draw the number of steps in flight: asynchronous scheduling or, if the scheduler lacks it, sometimes a
    pipeline."""
    scheduler = schedulers.resolve(world.scheduler)[0]
    if "speculation" not in scheduler.supports:
        world = replace(world, speculation="")
    able = "async" in scheduler.supports
    if world.speculation:
        able = able and "async" in speculators.resolve(world.speculation)[0].supports
        groups = len(world.windows)  # as at vLLM's start-up: draft slots are limited by memory
        most = (world.num_blocks - 1) // groups * world.block_size
        world = replace(world, max_model_len=min(world.max_model_len, most))
    depth = draws.one("depth", [1, 2, 2] if able else [1, 1, 1, 2])
    asynchronous = able and depth == 2 and draws.one("asynchronous", [True, True, True, False])
    if isinstance(world.cost, ToyCost):
        world.cost.asynchronous = asynchronous
    return replace(world, depth=depth, asynchronous=asynchronous)


def _clients(draws: Draws, world: World) -> World:
    """Sometimes let requests follow others, and clients give up and retry."""
    if "future" in kv_allocators.resolve(world.kv)[0].needs:
        return replace(world, replicas=1)
    if draws.one("social", [True, False, False]):
        n, edges = len(world.trace), []
        followed = draws.many("followed", n, [-1, -1, *range(n)])
        delays, triggers = draws.many("delays", n, [0, 1, 900, 40_000]), draws.many("triggers", n, [0, 1])
        for row in range(n):
            earlier = followed[row]
            edges.append([(earlier, triggers[row], delays[row], 0)] if 0 <= earlier < row else [])
        patience = draws.many("patience", n, [-1, -1, -1, 700, 5_000, 60_000])
        world.trace = replace(world.trace, after=After.of(edges), cancel_ns=np.array(patience, dtype=np.int64))
        clients = Clients(
            max_concurrency=draws.one("concurrency", [None, 1, 5]),
            timeout_ns=draws.one("timeout", [None, None, 25_000, 100_000]),
            ttft_timeout_ns=draws.one("ttft timeout", [None, None, 25_000]),
            retries=draws.one("retries", [0, 1]),
            retry_ns=draws.one("retry", [0, 7_000]),
        )
        return replace(world, clients=clients, max_queued=draws.one("queued", [None, None, 1, 4]))
    return world


def _samples(draws: Draws, world: World) -> World:
    """Sometimes add requests with several samples, if the policies can serve them."""
    try:
        core = world.core()
        check_samples(core.scheduler, core.kv)
    except UserError:
        return world
    if core.kv.needs or not draws.one("samples", [True, False, False]):
        return world
    counts = draws.many("further samples", len(world.trace), [0, 0, 1, 3])
    caps = np.repeat(world.trace.max_tokens, counts)
    shares = np.array(draws.many("their lengths", len(caps), range(1, 101)), dtype=np.int64)
    lengths = np.maximum(caps * shares // 100, 1).astype(np.int64)
    return replace(world, trace=replace(world.trace, samples=Samples.of(np.array(counts), lengths)))
