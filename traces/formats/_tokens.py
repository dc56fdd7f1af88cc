"""Conversion of token ids to content runs: a radix tree whose nodes are the pieces of text that prompts share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ._calls import Runs

Tokens = list[int]


@dataclass(slots=True, eq=False)
class _Node:
    tokens: Tokens
    children: dict[int, _Node] = field(default_factory=dict)
    ends: int = -1  # number of the first prompt that ends here
    number: int = -1


class TokenTree:
    """All prompts of a file; a prompt is None if its tokens are not known."""

    def __init__(self, prompts: Sequence[Tokens | None]) -> None:
        self._prompts = prompts
        self._root = _Node([])
        for row, prompt in enumerate(prompts):
            if prompt is not None:
                self._insert(prompt, row)
        self._texts = 0
        self._rests: dict[tuple[int, int], int] = {}

    def runs(self, answers: Sequence[Tokens | None]) -> list[Runs]:
        """Return each prompt as runs of the tree's nodes. If a prompt begins with an earlier prompt and its whole
        answer, that answer is represented as the earlier row's output. The runs of an unknown prompt are empty."""
        return [self._walk(prompt, answers) if prompt is not None else [] for prompt in self._prompts]

    def _walk(self, prompt: Tokens, answers: Sequence[Tokens | None]) -> Runs:
        runs: Runs = []
        node, at = self._root, 0
        skip = 0  # number of next tokens already represented as an output
        while at < len(prompt):
            node = node.children[prompt[at]]
            if node.number < 0:
                node.number = self._texts
                self._texts += 1
            length = len(node.tokens)
            if skip < length:
                runs.append((node.number, length - skip) if not skip else (self._rest(node, skip), length - skip))
            skip = max(skip - length, 0)
            at += length
            answer = answers[node.ends] if node.ends >= 0 else None
            if not skip and answer and prompt[at : at + len(answer)] == answer:
                runs.append((-node.ends - 1, len(answer)))
                skip = len(answer)
        return runs

    def _rest(self, node: _Node, skip: int) -> int:
        """Return the text id for a node's tokens after the first `skip`."""
        key = (node.number, skip)
        if key not in self._rests:
            self._rests[key] = self._texts
            self._texts += 1
        return self._rests[key]

    def _insert(self, prompt: Tokens, row: int) -> None:
        node, at = self._root, 0
        while at < len(prompt):
            child = node.children.get(prompt[at])
            if child is None:
                child = node.children[prompt[at]] = _Node(prompt[at:])
                node, at = child, len(prompt)
                break
            same = _common(child.tokens, prompt, at)
            if same < len(child.tokens):
                upper = _Node(child.tokens[:same], {child.tokens[same]: child})
                child.tokens = child.tokens[same:]
                node.children[prompt[at]] = child = upper
            node, at = child, at + same
        if node.ends < 0:
            node.ends = row


def _common(tokens: Tokens, prompt: Tokens, at: int) -> int:
    """Return how many leading items of `tokens` match the prompt from position `at` on."""
    if prompt[at : at + len(tokens)] == tokens:
        return len(tokens)
    return next(i for i, token in enumerate(tokens) if at + i == len(prompt) or prompt[at + i] != token)
