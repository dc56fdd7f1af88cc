"""Runners of the cases about memory: contiguous reservations, SGLang's radix tree, pages and groups of layers."""

from __future__ import annotations

from typing import Any

from servesim.contracts import MISS, KVMemory, Request, build_params, kv_allocators
from servesim.hardware import ModelSpec
from servesim.policies.kv._radix import Node, RadixTree

Case = dict[str, Any]


class Key:
    """Content that is a list of tokens of any kind."""

    def __init__(self, tokens: list[Any]) -> None:
        self.tokens = tokens

    def prefix_key(self, stop: int) -> tuple[Any, ...]:
        return tuple(self.tokens[:stop])


class RadixRun:
    """The tree alone. It keeps no values: what a prefix would map to follows from who entered it first."""

    def __init__(self, case: Case) -> None:
        config = case["config"]
        self.tree = RadixTree(config["page_size"], config.get("eviction_policy", "lru"))
        self.values: dict[tuple[Any, ...], Any] = {}

    def run(self, case: Case) -> None:
        for number, op in enumerate(case["script"]):
            seen = getattr(self, "op_" + op["op"])(op)
            self.tree.check_integrity()
            seen |= {
                "total": self.tree.total,
                "evictable": self.tree.evictable,
                "protected": self.tree.protected,
            }
            for key, expected in op.get("expect", {}).items():
                assert seen[key] == expected, f"op {number} ({op['op']}): {key} is {seen[key]}, expected {expected}"

    def op_insert(self, op: Case) -> dict[str, Any]:
        key = Key(op["key"])
        found, _ = self.tree.insert(key, len(op["key"]), op.get("extra_key", ""), op.get("priority", 0))
        for stop in range(found + 1, len(op["key"]) + 1):
            self.values[key.prefix_key(stop)] = op["value"][stop - 1]
        return {"already_cached": found}

    def op_match(self, op: Case) -> dict[str, Any]:
        node = self.tree.match(Key(op["key"]), len(op["key"]), op.get("extra_key", ""))
        return {"value": [self.values[tuple(op["key"][:stop])] for stop in range(1, node.end + 1)]}

    def op_lock(self, op: Case) -> dict[str, Any]:
        self.tree.lock(self.tree.match(Key(op["key"]), len(op["key"]), op.get("extra_key", "")))
        return {}

    def op_unlock(self, op: Case) -> dict[str, Any]:
        self.tree.unlock(self.tree.match(Key(op["key"]), len(op["key"]), op.get("extra_key", "")))
        return {}

    op_inc_lock = op_inc_lock_ref = op_lock
    op_dec_lock = op_dec_lock_ref = op_unlock

    def op_evict(self, op: Case) -> dict[str, Any]:
        dropped = self.tree.evict(op["num_tokens"])
        return {"evicted": sum(n.end - n.start for n in dropped), "order": [self._run(n) for n in dropped]}

    def op_reset(self, op: Case) -> dict[str, Any]:
        self.tree.reset()
        return {}

    def op_check(self, op: Case) -> dict[str, Any]:
        return {}

    def _run(self, node: Node) -> list[Any]:
        return [self.values[node.content.prefix_key(stop)] for stop in range(node.start + 1, node.end + 1)]  # type: ignore[index]


class ContiguousRun:
    """Reservations asked of the allocator itself, and how many of the longest kind it takes."""

    def __init__(self, case: Case) -> None:
        self.config = case["config"]

    def allocator(self, slots: int, **params: Any) -> Any:
        cls, _ = kv_allocators.resolve("contiguous")
        kv: Any = cls(build_params("contiguous", cls.Params, params), KVMemory(slots, 1, self.config["max_len"]))
        kv.output_len = lambda request: request.max_tokens
        return kv

    def run(self, case: Case) -> None:
        for row in case.get("table", []):
            asked = Request(0, "0", row["prompt"], row["output"], 0)
            for reservation, expected in row["expect"].items():
                got = self.allocator(4 * self.config["max_len"], reservation=reservation).reservation(asked)
                assert got == expected, f"{row}: {reservation} reserves {got}"
        if "kv_memory_gib" in self.config:
            assert self.pool(case["expect"]) == case["expect"]

    def pool(self, expect: dict[str, int]) -> dict[str, int]:
        per_token = self.config["kv_bytes_per_token"]
        slots = int(self.config["kv_memory_gib"] * 2**30) // per_token
        seen = {"slots": slots}
        if "kv_bytes_per_token" in expect:
            seen["kv_bytes_per_token"] = ModelSpec.load(self.config["model"].lower()).kv_bytes_per_token("bf16")
        if "orca_max_concurrency" in expect:
            seen["orca_max_concurrency"] = self.fill(self.allocator(slots))
        return seen

    def fill(self, kv: Any) -> int:
        count = 0
        while kv.can_admit(request := Request(count, str(count), 1, 1, 0), MISS, 1, 1, 0):
            kv.admit(request, MISS, 1, 0)
            count += 1
        return count


RUNNERS = {"radix_tree": RadixRun, "contiguous_reservation": ContiguousRun}
