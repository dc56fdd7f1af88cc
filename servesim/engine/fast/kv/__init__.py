"""The built-in allocators in fast mode, each a counterpart of a plain class in policies/kv."""

from __future__ import annotations

from servesim.contracts.kv import KVAllocator
from servesim.engine.fast.kv.hybrid import FastHybrid, FastHybridPaged
from servesim.engine.fast.kv.others import FastContiguous, FastEvicting, FastPrefixOracle, FastPrefixRadix
from servesim.engine.fast.kv.paged import FastPaged, FastPrefixHash
from servesim.engine.fast.memory import stand_ins

__all__ = [
    "FastContiguous",
    "FastEvicting",
    "FastHybrid",
    "FastHybridPaged",
    "FastPaged",
    "FastPrefixHash",
    "FastPrefixOracle",
    "FastPrefixRadix",
    "fast_memory",
]


def fast_memory(cls: type[KVAllocator]) -> type[KVAllocator]:
    """Return the class that replaces an allocator's class in fast mode, or that class itself if there is none."""
    return stand_ins.get(cls, cls)
