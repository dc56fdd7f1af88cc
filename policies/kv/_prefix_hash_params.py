"""Parameters of prefix caching."""

from __future__ import annotations

from dataclasses import dataclass

from servesim.contracts.speculator import MOST_DRAFTS


@dataclass(frozen=True)
class PrefixHashParams:
    """Variants of vLLM's prefix cache."""

    hash_lookahead_tokens: int = 0
    """Number of tokens after a block that its hash also covers (EAGLE/MTP without a KV connector: 1)."""
    eagle_block_drop: bool = False
    """Whether a hit drops one more trailing block (EAGLE/MTP with a connector, and older releases)."""
    free_order: str = "front"
    """End of the free queue that receives freed blocks without a hash: "front" (0.33) or "back" (older V1 releases)."""

    def __post_init__(self) -> None:
        if not 0 <= self.hash_lookahead_tokens <= MOST_DRAFTS:
            raise ValueError(
                f"hash_lookahead_tokens is {self.hash_lookahead_tokens} but must be from 0 to {MOST_DRAFTS:,}"
            )
        if self.free_order not in ("front", "back"):
            raise ValueError(f'free_order must be "front" or "back", not "{self.free_order}"')
