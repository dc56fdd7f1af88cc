"""Counts of a run's drafts."""

from __future__ import annotations

from dataclasses import dataclass, field

from mypy_extensions import mypyc_attr


@mypyc_attr(serializable=True)
@dataclass(slots=True)
class SpecStats:
    """Counts of speculative decoding, as vLLM keeps them."""

    proposed: int = 0
    """Draft tokens proposed; those of requests that were preempted or ended meanwhile are never verified."""
    drafts: int = 0
    """Verifications of at least one draft token."""
    draft_tokens: int = 0
    accepted: int = 0
    per_pos: list[int] = field(default_factory=list)
    """Accepted draft tokens by position."""

    def add(self, drafts: int, accepted: int) -> None:
        """One verification of `drafts` tokens, the first `accepted` of which were right."""
        self.drafts += 1
        self.draft_tokens += drafts
        self.accepted += accepted
        self.per_pos.extend([0] * (drafts - len(self.per_pos)))
        for i in range(accepted):
            self.per_pos[i] += 1

    def add_many(self, drafts: int, tokens: bytes | bytearray) -> int:
        """Add one verification of `drafts` tokens for each element of `tokens`: the tokens that it delivered, one being
        the target's own. Return how many were accepted."""
        before, count = self.accepted, len(tokens)
        self.drafts += count
        self.draft_tokens += drafts * count
        self.per_pos.extend([0] * (drafts - len(self.per_pos)))
        for i in range(drafts):
            count -= tokens.count(i + 1)  # no more than i accepted
            if not count:
                break
            self.per_pos[i] += count
            self.accepted += count
        return self.accepted - before
