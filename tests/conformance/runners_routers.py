"""Decisions recorded from real routers, put to our own: the classes that the simulator uses, by their contract."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from scipy import stats

from servesim.contracts import Reject, Request, Router, build_params, make, routers
from servesim.contracts.kv_events import BlockRemoved, BlockStored
from servesim.contracts.router import ReplicaView, Views
from servesim.policies.routing._block_sets import block_keys
from servesim.policies.routing._dynamo import DynamoRouter
from servesim.policies.routing.circuit_breaker import CircuitBreaker
from servesim.workload.content import RunContent
from tests.conformance.cases import Case

RAY = f"{Path(__file__).resolve().parents[2] / 'docs' / 'ray_prefix.py'}:RayPrefix"
WITHIN_S = 0.025
CHI_SQUARE_P = 1e-3
"""Probability below which counts are not taken for uniform: one of 1,000 uniform routers fails."""


class View(NamedTuple):
    """A replica of which nothing is known but that it is there."""

    index: int
    state: str = "ready"
    num_waiting: int = 0
    num_running: int = 0
    num_unread: int = 0
    kv_usage: float = 0.0
    at_ns: int = 0


def views_of(indices: Sequence[int]) -> Views:
    views = Views(cast(ReplicaView, View(i)) for i in indices)
    views.ready = list(indices)
    return views


def build(name: str, params: dict[str, Any], workers: int) -> Router:
    cls, _ = routers.resolve(name)
    return make(cls, build_params(name, cls.Params, params), workers)


FAMILIES = {"sglang-router 0.3.2": "sglang", "smg 1.9.0": "smg", "smg 1.13.0": "smg113", "vllm-router 0.1.17": "vllmr"}
NAMES: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {
    ("sglang", "cache_aware"): ("sglang-cache-aware", {}),
    ("smg", "cache_aware"): ("smg-cache-aware", {}),
    ("smg113", "cache_aware"): ("smg-cache-aware", {"version": "1.13.0"}),
    ("vllmr", "cache_aware"): ("vllm-router-cache-aware", {}),
    ("sglang", "manual"): ("manual", {}),
    ("smg", "manual"): ("manual", {}),
    ("smg113", "manual"): ("manual", {}),
    ("smg", "consistent_hashing"): ("consistent-hash", {}),
    ("smg113", "consistent_hashing"): ("consistent-hash", {}),
    ("vllmr", "consistent_hash"): ("consistent-hash", {}),
    ("vllmr", "sticky_least_loaded"): ("sticky-least-loaded", {}),
    ("smg113", "least_load"): ("smg-least-load", {}),
    ("vllmr", "power_of_two"): ("power-of-two", {}),
} | {
    (family, policy): (name, {})
    for family in FAMILIES.values()
    for policy, name in (("round_robin", "round-robin"), ("random", "random"))
}  # fmt: skip
"""Our routers by family and policy, and what the version says of their parameters."""


def router_of(case: Case) -> Router:
    family = FAMILIES[case["router"]]
    name, params = NAMES[family, case["policy"]]
    return build(name, {**params, **case.get("params", {})}, case["workers"])


class Script:
    """Ops of a script, put to a router one after the other."""

    def __init__(self, case: Case, router: Router) -> None:
        self.ops = case["ops"]
        self.router = router
        self.views = views_of(range(case["workers"]))
        self.live: dict[int, tuple[Request, int]] = {}
        self.load = [0] * case["workers"]

    def request(self, op: dict[str, Any]) -> Request:
        runs = [(content, length) for content, length in op["runs"]]
        number, total = op.get("id", 1 << 40), sum(length for _, length in runs)
        content = RunContent(number, runs)
        return Request(number, str(number), total, 1, 0, content=content, session=op.get("key", ""))

    def sent(self, request: Request, worker: int) -> None:
        self.router.on_sent(request, worker)
        self.live[request.row] = request, worker
        self.load[worker] += 1

    def finish(self, number: int) -> None:
        request, worker = self.live.pop(number)
        self.load[worker] -= 1
        self.router.on_finish(request, worker, "finished")


def follow(case: Case, check: Callable[[Script, dict[str, Any], Request], str]) -> list[str]:
    """Put a script to a router that is told the real choices; return what `check` found before each."""
    script = Script(case, router_of(case))
    wrong = []
    for op in script.ops:
        if op["op"] == "complete":
            script.finish(op["id"])
            continue
        assert op["op"] == "arrive", op["op"]
        request = script.request(op)
        fault = check(script, op, request)
        if fault:
            wrong.append(f"request {op['id']}: {fault}")
        script.sent(request, op["worker"])
    return wrong


def exact(case: Case) -> list[str]:
    def check(script: Script, op: dict[str, Any], request: Request) -> str:
        worker = script.router.route(request, script.views)
        return "" if worker == op["worker"] else f"goes to {worker}, really to {op['worker']}"

    return follow(case, check)


def candidates(case: Case) -> list[str]:
    def check(script: Script, op: dict[str, Any], request: Request) -> str:
        options = sorted(script.router.candidates(request, script.views))  # type: ignore[attr-defined]
        if op["worker"] not in options or options != sorted(op.get("candidates", options)):
            return f"may go to {options}, really to {op['worker']} of {op.get('candidates')}"
        return ""

    return follow(case, check)


def own_choices(case: Case) -> list[tuple[dict[str, Any], int]]:
    """Return each arrival of a script with what our router chooses when its own choices take effect."""
    script = Script(case, router_of(case))
    chosen = []
    for op in script.ops:
        if op["op"] == "complete":
            script.finish(op["id"])
            continue
        request = script.request(op)
        worker = script.router.route(request, script.views)
        assert isinstance(worker, int)
        chosen.append((op, worker))
        script.sent(request, worker)
    return chosen


def sticky(case: Case) -> list[str]:
    """No key moves: ours among its own choices, the real one's among the real ones."""
    wrong = []
    for whose in ("ours", "real"):
        homes: dict[str, int] = {}
        for op, worker in own_choices(case):
            worker = worker if whose == "ours" else op["worker"]
            if "key" in op and homes.setdefault(op["key"], worker) != worker:
                wrong.append(f"request {op['id']}: key {op['key']} moves to {worker} ({whose})")
    return wrong


def statistical(case: Case) -> list[str]:
    chosen = own_choices(case)
    wrong = []
    for whose, workers in (("ours", [w for _, w in chosen]), ("real", [op["worker"] for op, _ in chosen])):
        counts = [Counter(workers)[w] for w in range(case["workers"])]
        p = stats.chisquare(counts).pvalue
        if p < CHI_SQUARE_P:
            wrong.append(f"{counts} requests by worker are not uniform ({whose}, p = {p:.1e})")
    return wrong


def never_strictly_most_loaded(case: Case) -> list[str]:
    def check(script: Script, op: dict[str, Any], request: Request) -> str:
        most = max(script.load)
        worker = script.router.route(request, script.views)
        if script.load.count(most) == 1 and script.load.index(most) in (worker, op["worker"]):
            return f"goes to {worker}, really to {op['worker']}, loads {script.load}"
        return ""

    return follow(case, check)


def argmin(case: Case) -> list[str]:
    """Dynamo: every counter and cost before each choice, and the choice among the least."""
    router = build("dynamo-kv", case["params"], case["workers"])
    assert isinstance(router, DynamoRouter)
    router.output_block = case["block_size"]
    script = Script(case, router)
    wrong = []
    for op in case["ops"]:
        if op["op"] in ("stored", "removed"):
            keys = block_keys(script.request(op), case["block_size"])
            told = tuple(keys[op["first_block"] : op["end_block"]])
            parent = keys[op["first_block"] - 1] if op["first_block"] else None
            stored = op["op"] == "stored"
            event = BlockStored(told, parent, case["block_size"]) if stored else BlockRemoved(told)
            router.on_kv_events(op["worker"], [event])
        elif op["op"] == "arrive":
            request = script.request(op)
            wrong += [f"request {op['id']}: {fault}" for fault in _dynamo_faults(script, router, op, request)]
            script.sent(request, op["worker"])
        elif op["op"] == "prefill_done":
            router.on_prefill_done(*script.live[op["id"]])
        elif op["op"] == "output_block":
            router.on_output_block(*script.live[op["id"]])
        else:
            assert op["op"] == "free", op["op"]
            if op["id"] in script.live:
                script.finish(op["id"])
    return wrong


def _dynamo_faults(script: Script, router: DynamoRouter, op: dict[str, Any], request: Request) -> Iterator[str]:
    found = router.counters(request)
    for name, values in found._asdict().items():
        if values.tolist() != op[name]:
            yield f"{name} is {values.tolist()}, really {op[name]}"
    costs = router.costs(request, found, range(len(script.views))).tolist()
    if any(abs(ours - real) > 1e-6 for ours, real in zip(costs, op["costs"], strict=True)):
        yield f"costs are {costs}, really {op['costs']}"
    worker, size = op["worker"], router.output_block
    if request.prompt_len - found.overlap_blocks[worker] * size != op["effective_prefill_tokens"]:
        yield "effective_prefill_tokens differ"
    if found.potential_decode_blocks[worker] + (request.prompt_len % size > 0) != op["chosen_decode_blocks"]:
        yield "chosen_decode_blocks differ"
    choice = router.route(request, script.views)
    if worker not in op["argmin"] or choice not in op["argmin"]:
        yield f"goes to {choice}, really to {worker} of {op['argmin']}"


def attempts(case: Case) -> list[str]:
    """Retries behind circuit breakers: the workers tried, when, and what the client got."""
    flags = dict(zip(case["flags"][::2], case["flags"][1::2], strict=True))
    params = {
        "failure_threshold": flags["--cb-failure-threshold"],
        "success_threshold": flags["--cb-success-threshold"],
        "timeout_s": flags["--cb-timeout-duration-secs"],
        "max_retries": flags["--retry-max-retries"],
        "initial_backoff_ms": flags["--retry-initial-backoff-ms"],
        "jitter_factor": flags["--retry-jitter-factor"],
        "router": NAMES[FAMILIES[case["router"]], case["policy"]][0],
    }
    router = build("circuit-breaker", params, case["workers"])
    assert isinstance(router, CircuitBreaker)
    clock = [0]
    router.clock = lambda: clock[0]
    views, modes, wrong = views_of(range(case["workers"])), dict.fromkeys(range(case["workers"])), []
    for op in case["ops"]:
        if op["op"] == "mode":
            modes[op["worker"]] = op["mode"]
        elif op["op"] == "request":
            clock[0] = start = round(op["at_s"] * 1e9)
            tried, times, status = [], [], 0
            request = Request(op["id"], str(op["id"]), 1, 1, start)
            wait: int | None = 0
            while wait is not None and status != 200:
                clock[0] += wait
                decision = router.route(request, views)
                if not isinstance(decision, int):
                    assert isinstance(decision, Reject)
                    status = decision.status
                    wait = router.retry_ns(len(tried))
                    continue
                tried.append(decision)
                times.append((clock[0] - start) / 1e9)
                router.on_sent(request, decision)
                status = {None: 200, "500": 500, "drop": 502}[modes[decision]]
                router.on_finish(request, decision, "finished" if status == 200 else "failed")
                wait = router.retry_ns(len(tried) - 1)
            late = [abs(a - b) > WITHIN_S for a, b in zip(times, op["attempt_times_s"], strict=False)]
            if (tried, status) != (op["attempts"], op["status"]) or any(late):
                real = f"{op['attempts']} at {op['attempt_times_s']}, status {op['status']}"
                wrong.append(f"request {op['id']}: {tried} at {times}, status {status}; really {real}")
    return wrong


def ray(case: Case) -> list[str]:
    """Ray's tree: what it knows of each prompt, sizes, evictions and choices."""
    params = {"eviction_threshold_chars": None, "eviction_target_chars": None, **case["params"]}
    router = build(RAY, {**params, "eviction_interval_s": 1e9}, case["workers"])
    script, wrong = Script(case, router), []
    tree = cast(Any, router)
    for op in case["ops"]:
        if op["op"] == "complete":
            script.finish(op["id"])
        elif op["op"] == "evict":
            removed = tree.evict(op["worker"], op["min_remove"])
            if removed != op["removed"]:
                wrong.append(f"{removed} evicted, really {op['removed']}")
        else:
            request = script.request(op)
            found = tree.match(request)[0], tree.candidates(request, script.views), router.route(request, script.views)
            script.sent(request, op["worker"])
            real = op["matched_chars"], op["candidates"], op["worker"]
            if found != real or tree.sizes != op["chars"]:
                wrong.append(f"request {op['id']}: {found}, sizes {tree.sizes}; really {real}, sizes {op['chars']}")
    return wrong


JUDGES: dict[str, Callable[[Case], list[str]]] = {
    "exact": exact,
    "candidates": candidates,
    "sticky": sticky,
    "statistical": statistical,
    "argmin": argmin,
    "attempts": attempts,
    "never_strictly_most_loaded": never_strictly_most_loaded,
}


class RouterScript:
    """A script by its own judge."""

    def __init__(self, case: Case) -> None:
        self.tally = (0, 0)
        """Decisions and faults, once it has run."""

    def run(self, case: Case) -> None:
        wrong = (ray if case["policy"] == "ray_prefix_aware" else JUDGES[case["judge"]])(case)
        decisions = sum(op["op"] in ("arrive", "request") for op in case["ops"])
        self.tally = (decisions, len(wrong))
        assert not wrong, "\n".join([f"{len(wrong)} faults in {decisions} decisions", *wrong[:5]])


RUNNERS = {"router": RouterScript}
