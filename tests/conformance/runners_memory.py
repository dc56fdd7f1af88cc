"""Runners of the cases about memory: contiguous reservations, SGLang's radix tree, pages and groups of layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from servesim.contracts import MISS, Hit, KVMemory, Request, build_params, kv_allocators
from servesim.hardware import ModelSpec
from servesim.hardware.kv import KvGroup, block_bytes, kv_groups, max_concurrency, page_bytes
from servesim.hardware.layers import Latent
from servesim.metrics.prefix_cache import RecentHitRate
from servesim.policies.kv._radix import Node, RadixTree
from servesim.policies.kv.hybrid import window_hit
from tests.conformance.cases import Case, make_requests, perform, value_of


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
            seen = perform(self, number, op)
            self.tree.check_integrity()
            seen |= {
                "total": self.tree.total,
                "evictable": self.tree.evictable,
                "protected": self.tree.protected,
            }
            for key, expected in op.get("expect", {}).items():
                got = value_of(seen, key, number, op)
                assert got == expected, f"op {number} ({op['op']}): {key} is {got}, expected {expected}"

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


class WindowLookupRun:
    """How much of a prefix a sliding window can go on from."""

    def __init__(self, case: Case) -> None:
        config = case["config"]
        self.drop = int(config.get("eagle", False))
        self.need = -(-(config["sliding_window"] - 1) // config["block_size"]) + self.drop

    def run(self, case: Case) -> None:
        for row in case["table"]:
            cached = row["cached"]
            got = max(window_hit(cached.__getitem__, len(cached), self.need) - self.drop, 0)
            assert got == row["expect_hit_blocks"], f"{cached}: {got}"


class HybridRun:
    """Groups of layers: `full`, or `sw:` and a window."""

    def __init__(self, case: Case) -> None:
        config = case["config"]
        self.cls, _ = kv_allocators.resolve("hybrid")
        windows = tuple(None if group == "full" else int(group.split(":")[1]) for group in config["groups"])
        keys = ("prefix_cache_retention_interval", "eagle_block_drop")
        given = {k: config[k] for k in keys if config.get(k) is not None}
        self.params = {"prefix_cache_retention_interval": "dense"} | given
        length = config.get("max_model_len", 8192)
        self.memory = KVMemory(config["num_blocks"], config["block_size"], length, windows=windows)
        self.start(case)

    def start(self, case: Case) -> None:
        self.kv: Any = self.cls(build_params("hybrid", self.cls.Params, self.params), self.memory)
        self.requests = make_requests(case["requests"])
        self.hits: dict[str, Hit] = {}

    def run(self, case: Case) -> None:
        for number, op in enumerate(case["script"]):
            seen = perform(self, number, op)
            self.kv.held_tokens = sum(r.num_computed_tokens for r in self.kv.tables)
            self.kv.check_integrity()
            for key, expected in op.get("expect", {}).items():
                got = value_of(seen, key, number, op)
                assert got == expected, f"op {number} ({op['op']}): {key} is {got}, expected {expected}"
        first, *_, asked = self.requests.values()
        for row in case.get("evict_table", []):
            gone = [self.kv.tables[first][group][block] for block, group in row["evict"]]
            keys = [self.kv._key_of[block] for block in gone]
            for block in gone:
                self.kv._evict(block)
            hit = self.kv.lookup(asked).num_tokens // self.kv.block_size
            assert hit == row["expect_hit_blocks"], f"{row['evict']}: {hit} blocks"
            self.kv._register(zip(gone, keys, strict=True))

    def op_lookup(self, op: Case) -> dict[str, Any]:
        hit = self.hits[op["req"]] = self.kv.lookup(self.requests[op["req"]])
        return {"hit_block_ids": [list(t) for t in hit.blocks[0]] if hit.blocks else [], "hit_tokens": hit.num_tokens}

    def op_alloc(self, op: Case) -> dict[str, Any]:
        request, new, ahead = self.requests[op["req"]], op["new_tokens"], op.get("lookahead", 0)
        if request in self.kv.tables:
            held = [len(table) for table in self.kv.tables[request]]
            done = self.kv.grow(request, new, ahead)
        else:
            hit = self.hits[op["req"]] if op.get("use_hit") else MISS
            held = [hit.num_tokens // self.kv.block_size] * len(self.memory.windows)
            done = self.kv.can_admit(request, hit, new + ahead, 0, 0)
            if done:
                self.kv.admit(request, hit, new, ahead)
                request.num_computed_tokens = hit.num_tokens
        tables = self.kv.tables[request] if done else []
        new_blocks = [table[n:] for table, n in zip(tables, held, strict=True)] if done else None
        return {"new_block_ids": new_blocks, "block_ids": [list(table) for table in tables]}

    def op_advance(self, op: Case) -> dict[str, Any]:
        request = self.requests[op["req"]]
        request.num_computed_tokens = op["computed"]
        request.content.ids.extend(op.get("append", []))  # type: ignore[union-attr]
        request.num_tokens += len(op.get("append", []))
        return {}

    def op_free(self, op: Case) -> dict[str, Any]:
        for name in op["reqs"] if "reqs" in op else [op["req"]]:
            self.requests[name].num_computed_tokens = 0
            self.kv.free(self.requests[name])
        return {}

    def op_check(self, op: Case) -> dict[str, Any]:
        tables = {r.name: [list(t) for t in tables] for r, tables in self.kv.tables.items()}
        return {
            "block_ids": tables.get(op.get("req", ""), tables),
            "free_blocks": self.kv.num_free_blocks(),
            "free_order": self.kv.free_order(),
        }


class ConcurrencyRun:
    """Requests of the longest kind that a pool holds at a time."""

    def __init__(self, case: Case) -> None:
        self.config = case["config"]

    def run(self, case: Case) -> None:
        config = self.config
        for row in case["table"]:
            groups = [KvGroup(1, config["sliding_window"] if group == "sw" else 0) for group in row["groups"]]
            got = max_concurrency(
                row["num_blocks"], groups, config["block_size"], config["max_model_len"], config["max_in_flight_tokens"]
            )
            assert got == row["expect"], f"{row}: {got}"


class PageBytesRun:
    """Bytes of a block of a model of the kind a row says."""

    def __init__(self, case: Case) -> None:
        self.block_size = case["config"]["block_size"]

    def run(self, case: Case) -> None:
        for row in case["table"]:
            model = self.model(row)
            dtype = {1: "fp8", 2: "bf16", 4: "fp32"}[row["dtype_bytes"]]
            page = page_bytes(model, self.block_size, dtype)
            assert block_bytes(kv_groups(model.layers), page) == row["expect_bytes_per_block"], row

    def model(self, row: Case) -> ModelSpec:
        if row["kind"] == "mla":
            rope = 64
            latent = Latent(row["latent"] - rope, rope, nope_dim=128, v_dim=128)
            return replace(ModelSpec.load("deepseek-v3"), num_layers=row["layers"], latent=latent, layer_kinds=())
        return replace(
            ModelSpec.load("llama-2-7b"),
            num_layers=row["layers"],
            num_kv_heads=row["kv_heads"],
            head_dim=row["head_size"],
            layer_kinds=(),
        )


class HitRateRun:
    """vLLM's logged hit rate."""

    def __init__(self, case: Case) -> None:
        self.recent = RecentHitRate(case["config"]["window_requests"])

    def run(self, case: Case) -> None:
        for row in case["table"]:
            self.recent.observe(*row["observe"])
            assert self.recent.rate == row["expect_rate"], row


RUNNERS = {
    "radix_tree": RadixRun,
    "contiguous_reservation": ContiguousRun,
    "sliding_window_lookup": WindowLookupRun,
    "hybrid_kv": HybridRun,
    "max_concurrency": ConcurrencyRun,
    "kv_page_bytes": PageBytesRun,
    "prefix_hit_rate_metric": HitRateRun,
}
