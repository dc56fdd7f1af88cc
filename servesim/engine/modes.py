"""The classes that fast mode and reference mode are made of."""

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
    """The classes a mode is made of."""

    core: type[EngineCore]
    replica: type[Replica]
    memory: Callable[[type[KVAllocator]], type[KVAllocator]]
    """Returns the class that serves as an allocator's."""


MODES = {
    "reference": Mode(EngineCore, Replica, lambda cls: cls),
    "fast": Mode(FastCore, FastReplica, fast_memory),
}
