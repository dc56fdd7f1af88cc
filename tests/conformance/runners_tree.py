"""The runner of sequences recorded from SGLang's default tree."""

from __future__ import annotations

from typing import Any

from servesim.policies.kv._radix import Node, RadixTree
from tests.conformance.cases import Case, perform


class Slotted:
    """Token ids of one insert, token i of which has the slot `first_slot` + i."""

    def __init__(self, op: Case) -> None:
        self.ids, self.first_slot = op["tokens"], op.get("first_slot", 0)

    def prefix_key(self, stop: int) -> tuple[int, ...]:
        return tuple(self.ids[:stop])


class UnifiedTreeRun:
    """The tree alone: each operation's outcome, the sizes, and all nodes after it."""

    LOOKED_AT = frozenset(("matched", "prefix_len", "freed_slots", "evictable", "protected", "nodes"))
    GIVEN = frozenset(("op", "tokens", "salt", "priority", "first_slot", "inserted_len", "handle", "num_tokens"))

    def __init__(self, case: Case) -> None:
        config = case["config"]
        self.tree = RadixTree(config["page_size"], config["eviction_policy"])
        self.handles: dict[int, Node] = {}
        self.salts: dict[Node, str] = {}

    def run(self, case: Case) -> None:
        for number, op in enumerate(case["ops"]):
            assert op.keys() <= self.LOOKED_AT | self.GIVEN, f"op {number}: this runner does not know all of {list(op)}"
            seen = perform(self, number, op)
            self.tree.check_integrity()
            seen |= {"evictable": self.tree.evictable, "protected": self.tree.protected, "nodes": self.nodes()}
            for key in sorted(op.keys() & self.LOOKED_AT, key=lambda key: key == "nodes"):
                assert seen[key] == op[key], f"op {number} ({op['op']}): {key} is {seen[key]}, expected {op[key]}"

    def op_match(self, op: Case) -> dict[str, Any]:
        return {"matched": self.tree.match(Slotted(op), len(op["tokens"]), op["salt"]).end}

    def op_insert(self, op: Case) -> dict[str, Any]:
        found, _ = self.tree.insert(
            Slotted(op), len(op["tokens"]), op["salt"], op["priority"], inserted_len=op["inserted_len"]
        )
        return {"prefix_len": found}

    def op_lock(self, op: Case) -> dict[str, Any]:
        node = self.tree.match(Slotted(op), len(op["tokens"]), op["salt"])
        if "handle" in op:  # nothing is locked where nothing was found
            self.tree.lock(node)
            self.handles[op["handle"]] = node
        return {"matched": node.end}

    def op_unlock(self, op: Case) -> dict[str, Any]:
        self.tree.unlock(self.handles.pop(op["handle"]))
        return {}

    def op_evict(self, op: Case) -> dict[str, Any]:
        dropped = self.tree.evict(op["num_tokens"])
        return {"freed_slots": [list(range(*(n.content.first_slot + at for at in (n.start, n.end)))) for n in dropped]}  # type: ignore[attr-defined]

    def nodes(self) -> list[list[Any]]:
        """All nodes as [salt, tokens from the root to the node's end, hits, priority, locks], sorted."""
        return sorted([self.salt(n), n.end, n.hits, n.priority, n.locks] for n in self.tree.nodes())

    def salt(self, node: Node) -> str:
        top = list(node.path())[-1]
        return top.key[0] if isinstance(top.key[0], str) else ""  # type: ignore[index]


RUNNERS = {"unified_radix_tree": UnifiedTreeRun}
