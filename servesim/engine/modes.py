"""Classes that make up fast mode and reference mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from servesim.contracts.kv import KVAllocator
from servesim.engine.core import EngineCore
from servesim.engine.fast.core import FastCore
from servesim.engine.fast.kv import fast_memory
from servesim.engine.fast.replica import FastReplica
from servesim.engine.replica import Replica


class Mode(NamedTuple):
    """Classes that make up a mode."""

    core: type[EngineCore]
    replica: type[Replica]
    memory: Callable[[type[KVAllocator]], type[KVAllocator]]
    """Function that returns the class to use in place of an allocator's class."""


MODES = {
    "reference": Mode(EngineCore, Replica, lambda cls: cls),
    "fast": Mode(FastCore, FastReplica, fast_memory),
}
