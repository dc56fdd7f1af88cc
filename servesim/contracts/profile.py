"""Contract of profiles: the performance of one replica of a pool by the cost of its steps, for policies that plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from servesim.contracts.router import Role


class Profile(Protocol):
    """Performance of one replica of a pool, from the cost of its steps, its limits and its price; times in seconds."""

    role: Role
    models: tuple[str, ...]
    """Names of the models that the pool serves, or empty if all pools serve the same one."""
    num_gpus: int
    usd_per_hour: float
    """Price of one replica."""
    max_num_batched_tokens: int
    """Maximum number of tokens that a step computes."""
    max_num_seqs: int
    """Maximum number of running requests."""
    kv_tokens: int
    """Number of tokens that the KV memory holds."""

    def prefill_s(self, tokens: int) -> float:
        """Return the time of a step that only computes a prompt of `tokens` tokens."""

    def decode_s(self, sequences: int, context: int) -> float:
        """Return the time of a step in which that many sequences with that context get one token each."""
