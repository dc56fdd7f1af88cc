"""Time that a replica takes to start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from servesim.errors import UserError, shown, suggest


@dataclass(frozen=True)
class Start:
    """Parts of a replica's start, in order. The defaults are the 59 s of one vLLM server that loads from a warm disk
    (vllm issue 20264: compiled code from the cache, all CUDA graph sizes); a cold compile usually takes 30 to 60 s."""

    node_s: float = 0.0
    """Time to provision a node: 0 if one exists, otherwise 60 to 180 s."""
    pull_s: float = 0.0
    """Time to pull the container's image: 0 if it is already on the node."""
    boot_s: float = 24.0
    """Time from the container's start until the engine loads weights: imports, configuration, worker processes."""
    weights_gb_s: float = 2.0
    """GB/s at which weights are read, over all GPUs of the replica together; servers reach 1 to 5."""
    compile_s: float = 7.5
    """Time of torch.compile with a warm cache."""
    graphs_s: float = 17.0
    """Time to capture CUDA graphs."""
    warm_up_s: float = 9.6
    """Time to measure memory, to allocate the KV cache and to warm up, until the first request is accepted."""

    def total_s(self, weight_bytes: float) -> float:
        """Return the time from the decision until the replica accepts requests."""
        fixed = self.node_s + self.pull_s + self.boot_s + self.compile_s + self.graphs_s + self.warm_up_s
        return fixed + weight_bytes / (self.weights_gb_s * 1e9)


def start_of(given: Mapping[str, float]) -> Start:
    """Return the parts of a replica's start; raise UserError for an unknown part."""
    known = [part.name for part in fields(Start)]
    for key, value in given.items():
        if key not in known:
            raise UserError(f"start: unknown part {shown(key)}{suggest(key, known)}")
        if not (1e-3 if key == "weights_gb_s" else 0) <= value <= 1e7:
            raise UserError(f"start: {key} is {value:g} but must be a number up to 1e7 (at least 0.001 for a rate)")
    return Start(**given)
