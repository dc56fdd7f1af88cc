"""Counts of accepted drafts by position, on recorded greedy outputs.

Greedy verification accepts a draft if it is the token that the target itself produces (Leviathan et al., ICML 2023, at
temperature 0). An output thus determines which drafts are accepted, whatever is drafted, so every method and every k is
counted on the same outputs.
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
"""Function that takes `position` and returns which of the drafts for output tokens `position`, `position + 1`, ... are
right."""


@dataclass
class Counts:
    """Counts over decode steps of up to `k` drafts each, which follow the outputs as an engine's steps would. Lists are
    indexed by draft position."""

    k: int
    prompts: int = 0
    steps: int = 0
    """Number of decode steps, including those with nothing to verify."""
    proposed: list[int] = field(default_factory=list)
    """Number of steps that had a draft at each position; the first entry is the number of verifications."""
    reached: list[int] = field(default_factory=list)
    """Number of steps, of those that had a draft at the position, in which all earlier drafts were accepted."""
    accepted: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        for counts in (self.proposed, self.reached, self.accepted):
            counts.extend([0] * (self.k - len(counts)))

    def walk(self, length: int, right: Right) -> None:
        """Count one output of `length` tokens. Drafting begins after the first token, which the prefill produces. A
        step whose k drafts would reach beyond the end of the output is not counted, since the tokens there are
        unknown."""
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
        """Return the counts and the rates derived from them."""
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
    """Return the Wilson score interval (1927) of a proportion, or [0, 1] if there are no trials. It assumes that trials
    are independent."""
    if not tries:
        return 0.0, 1.0
    share, square = hits / tries, z * z / tries
    middle = (share + square / 2) / (1 + square)
    half = z * sqrt(share * (1 - share) / tries + square / (4 * tries)) / (1 + square)
    return max(0.0, middle - half), min(1.0, middle + half)


def lookup(answer: Answer, k: int, min_n: int, max_n: int) -> Right:
    """Return a function that tells which prompt-lookup drafts are right."""
    output = answer.output_tokens

    def right(position: int) -> list[bool]:
        drafts = propose(answer.prompt_tokens + output[:position], min_n, max_n, k)
        return [draft == output[position + j] for j, draft in enumerate(drafts)]

    return right


def early_exit(answer: Answer, k: int, layers: int) -> Right:
    """Return a function that tells which drafts from the model's first layers are right; there are always k drafts.
    Drafts after a wrong one are judged as if they followed the true tokens; no result depends on these drafts."""
    bits = answer.exits[layers - 1]
    return lambda position: [bit == "1" for bit in bits[position : position + k]]


def table(
    answers: Iterable[Answer],
    right: Callable[[Answer], Right],
    k: int,
    method: dict[str, Any],
    settings: dict[str, Any],
) -> dict[str, Any]:
    """Return the acceptance table of one method at one k, by domain and in total. `same_in_one_pass` counts the output
    tokens that the whole model reproduces in one pass over an output; a count below the total would be due to
    rounding."""
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
        "note": (
            "wilson_95 treats drafts as independent; drafts of one prompt are not, so the spread between prompts is "
            "wider"
        ),
        "all": sum(domains.values(), Counts(k)).to_dict(),
        "domains": {name: counts.to_dict() for name, counts in domains.items()},
    }
