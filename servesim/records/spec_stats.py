"""Counts of a run's drafts."""

from __future__ import annotations

from dataclasses import dataclass, field

from mypy_extensions import mypyc_attr


@mypyc_attr(serializable=True)
@dataclass(slots=True)
class SpecStats:
    """Counts of draft tokens and their acceptance, as vLLM defines them."""

    proposed: int = 0
    """Draft tokens proposed; drafts of requests that were preempted or ended in the meantime are never verified."""
    drafts: int = 0
    """Number of number of verifications of at least one draft token."""
    draft_tokens: int = 0
    accepted: int = 0
    per_pos: list[int] = field(default_factory=list)
    """Accepted draft tokens by position."""

    def add(self, drafts: int, accepted: int) -> None:
        """Add one verification of `drafts` tokens, of which the first `accepted` were correct."""
        self.drafts += 1
        self.draft_tokens += drafts
        self.accepted += accepted
        self.per_pos.extend([0] * (drafts - len(self.per_pos)))
        for i in range(accepted):
            self.per_pos[i] += 1

    def add_many(self, drafts: int, tokens: bytes | bytearray) -> int:
        """Add one verification of `drafts` tokens for each element of `tokens`: the number of tokens that the
        verification delivered, including the target model's own token. Return the number of accepted tokens."""
        before, count = self.accepted, len(tokens)
        self.drafts += count
        self.draft_tokens += drafts * count
        if drafts > len(self.per_pos):
            self.per_pos += [0] * (drafts - len(self.per_pos))
        for i in range(drafts):
            count -= tokens.count(i + 1)  # no more than i accepted
            if not count:
                break
            self.per_pos[i] += count
            self.accepted += count
        return self.accepted - before
