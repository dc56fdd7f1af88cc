"""Counts of accepted drafts by position, on recorded greedy answers.

Greedy verification accepts a draft if it is the token that the target gives itself (Leviathan et al., ICML 2023, at
temperature 0), so an answer tells which drafts are accepted, whatever is drafted, and every method and every k is
counted on the same answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

from servesim.calibrate.acceptance import Answer
from servesim.policies.speculation.ngram import propose

FORMAT = "servesim acceptance 1"
Right = Callable[[int], Sequence[bool]]
"""A function from `position` to which of the drafts for output tokens `position`, `position + 1`, ... are right."""


@dataclass
class Counts:
    """Steps of up to `k` drafts, walked along answers as an engine does. Lists go by draft position."""

    k: int
    prompts: int = 0
    steps: int = 0
    """Steps of decoding, those with nothing to verify included."""
    proposed: list[int] = field(default_factory=list)
    """Steps that had a draft at the position; the first entry is the number of verifications."""
    reached: list[int] = field(default_factory=list)
    """... all drafts before it being accepted."""
    accepted: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        for counts in (self.proposed, self.reached, self.accepted):
            counts.extend([0] * (self.k - len(counts)))

    def walk(self, length: int, right: Right) -> None:
        """Count one answer of `length` tokens. Drafting begins after the first token, which the prompt's own pass
        gives; a step whose k drafts would reach beyond the end of the answer is not counted, since what comes there is
        not known."""
        self.prompts += 1
        position = 1
        while position + self.k <= length:
            drafts = right(position)
            run = next((j for j, ok in enumerate(drafts) if not ok), len(drafts))
            for j in range(len(drafts)):
                self.proposed[j] += 1
                self.reached[j] += j <= run
                self.accepted[j] += j < run
            self.steps += 1
            position += 1 + run

    def __add__(self, other: Counts) -> Counts:
        lists = ([a + b for a, b in zip(getattr(self, name), getattr(other, name), strict=True)] for name in _LISTS)
        return Counts(self.k, self.prompts + other.prompts, self.steps + other.steps, *lists)

    def to_dict(self) -> dict[str, Any]:
        """Return the counts, and the rates they give."""
        found = {
            "prompts": self.prompts,
            "steps": self.steps,
            "steps_without_draft": self.steps - self.proposed[0],
            **{name: getattr(self, name) for name in _LISTS},
            "tokens_per_step": round(1 + sum(self.accepted) / self.steps, 4) if self.steps else None,
        }
        pairs = list(zip(self.accepted, self.reached, strict=True))
        return found | {
            "conditional": [round(hits / tries, 4) if tries else None for hits, tries in pairs],
            "wilson_95": [[round(bound, 4) for bound in wilson(hits, tries)] for hits, tries in pairs],
        }


_LISTS = ("proposed", "reached", "accepted")


def wilson(hits: int, tries: int, z: float = 1.96) -> tuple[float, float]:
    """Return the score interval of a share (Wilson 1927); the whole of [0, 1] without tries. It takes the tries as
    independent."""
    if not tries:
        return 0.0, 1.0
    share, square = hits / tries, z * z / tries
    middle = (share + square / 2) / (1 + square)
    half = z * sqrt(share * (1 - share) / tries + square / (4 * tries)) / (1 + square)
    return max(0.0, middle - half), min(1.0, middle + half)


def lookup(answer: Answer, k: int, min_n: int, max_n: int) -> Right:
    """Return drafts by prompt lookup."""
    output = answer.output_tokens

    def right(position: int) -> list[bool]:
        drafts = propose(answer.prompt_tokens + output[:position], min_n, max_n, k)
        return [draft == output[position + j] for j, draft in enumerate(drafts)]

    return right


def early_exit(answer: Answer, k: int, layers: int) -> Right:
    """Return drafts by the first layers: always k. Those after a wrong one are judged as if they followed the true
    tokens, which nothing here depends on."""
    bits = answer.exits[layers - 1]
    return lambda position: [bit == "1" for bit in bits[position : position + k]]


def table(
    answers: Iterable[Answer],
    right: Callable[[Answer], Right],
    k: int,
    method: dict[str, Any],
    settings: dict[str, Any],
) -> dict[str, Any]:
    """Return the acceptance table of one method at one k, by domain and in all. `same_in_one_pass` counts the output
    tokens that the whole model gives again in one pass over an answer: fewer than all would be rounding."""
    answers = list(answers)
    domains: dict[str, Counts] = {}
    for answer in answers:
        domains.setdefault(answer.domain, Counts(k)).walk(len(answer.output_tokens), right(answer))
    return {
        "format": FORMAT,
        "method": method,
        "k": k,
        "verification": "greedy: a draft is accepted if it is the target's own most likely token",
        **settings,
        "output_tokens": sum(len(answer.output_tokens) for answer in answers),
        "same_in_one_pass": sum(answer.exits[-1].count("1") for answer in answers),
        "note": "wilson_95 takes drafts as independent; those of one prompt are not, so the spread of prompts is wider",
        "all": sum(domains.values(), Counts(k)).to_dict(),
        "domains": {name: counts.to_dict() for name, counts in domains.items()},
    }
