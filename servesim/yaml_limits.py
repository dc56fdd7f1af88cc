"""YAML loader that enforces limits: it counts values (with aliases expanded), limits nesting depth, and rejects
duplicate keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from servesim.errors import shown

if TYPE_CHECKING:
    from servesim.limits import Limits


class RefusedYamlError(yaml.MarkedYAMLError):
    """Error for a document that exceeds the limits or has a duplicate key."""


class LimitedLoader(yaml.SafeLoader):
    """Loader of plain values only, like SafeLoader."""

    def __init__(self, text: str, limits: Limits) -> None:
        super().__init__(text)
        self._limits = limits
        self._count = self._depth = self._deepest = 0
        self._known: dict[int, tuple[int, int]] = {}  # number of values and depth of each composed node

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose a node and count it; count an aliased node as if it were written out at the alias."""
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            node = super().compose_node(parent, index)
            if id(node) not in self._known:
                raise RefusedYamlError(None, None, "an alias refers to a node that contains it", mark)
            size, height = self._known[id(node)]
            self._add(size, self._depth + height, mark)
            return node
        before, outside = self._count, self._deepest
        self._depth += 1
        self._deepest = self._depth
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        self._add(1, self._depth, mark)
        node = super().compose_node(parent, index)
        self._known[id(node)] = (self._count - before, self._deepest - self._depth + 1)
        self._depth -= 1
        self._deepest = max(outside, self._deepest)
        return node

    def _add(self, count: int, depth: int, mark: Any) -> None:
        self._count += count
        self._deepest = max(self._deepest, depth)
        if depth > self._limits.depth:
            raise RefusedYamlError(None, None, f"lists and mappings nested more than {self._limits.depth} deep", mark)
        if self._count > self._limits.nodes:
            raise RefusedYamlError(None, None, f"more than {self._limits.nodes:,} values, with aliases expanded", mark)

    def flatten_mapping(self, node: Any) -> None:
        """Reject duplicate keys before `<<` keys are merged, which any key may override."""
        if self._known.pop(id(node), None) is not None:  # only once: merged keys are added later
            seen: set[tuple[str, str]] = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode):
                    name = (key.tag, key.value)
                    if name in seen:
                        raise RefusedYamlError(None, None, f"key {shown(key.value)} appears twice", key.start_mark)
                    seen.add(name)
        super().flatten_mapping(node)
