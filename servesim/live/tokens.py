"""Tokens of texts and of answers, and the identity of prompts by their tokens."""

from __future__ import annotations

import re
from array import array
from collections.abc import Hashable, Sequence
from hashlib import blake2b
from zlib import crc32

from servesim.draws import uniform_one

LINK = 16
"""Number of tokens from one link of the chain of digests to the next."""
_PIECES = re.compile(r" ?[^\W\d_]{1,5}|\d{1,3}| ?[^\w\s]|\s+|_|.", re.DOTALL)
_COMMON = """the of and to in is it that was for on are as with his they at be this from have or by one had not but
what all were when we there can an your which their said if do will each about how up out them then she many some so
these would other into has more her two like him see time could no make than first been its who now my"""
_WORDS = _COMMON.split()
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def pieces_of(text: str) -> list[str]:
    """Split a text as a stand-in for a tokenizer: into pieces of words, of about four characters each. Texts with a
    common beginning have the same pieces there, except possibly the last one."""
    return _PIECES.findall(text)


def token_of(piece: str) -> int:
    """Return the token id of a piece, 0 to 2^32 - 1."""
    return crc32(piece.encode("utf-8", "replace"))


def tokens_of(text: str) -> list[int]:
    """Return the token ids of a text."""
    return [token_of(piece) for piece in pieces_of(text)]


def answer_to(row: int, length: int) -> list[str]:
    """Return the pieces of the answer to request `row`: common words after one that no other answer begins with, so
    that two answers to one prompt are different texts. Split again, the text has the same pieces."""
    name, rest = "", row
    for _ in range(5):
        rest, letter = divmod(rest, len(_LETTERS))
        name = _LETTERS[letter] + name
    start = int(uniform_one(0, "answer", row) * len(_WORDS))
    return [" " + name, *(f" {_WORDS[(start + i) % len(_WORDS)]}" for i in range(1, length))]


class TokenContent:
    """Prompt given by its tokens (ids from 0 to 2^32 - 1), followed by the tokens of its answer.

    A prefix is identified by a chain of digests, one for each LINK tokens, so its key depends on its tokens alone.
    """

    __slots__ = ("_answer", "_links", "_tokens")

    def __init__(self, tokens: Sequence[int], answer: Sequence[int]) -> None:
        self._tokens = array("I", tokens)
        self._answer = answer
        self._links = [b""]

    def tokens(self, start: int, stop: int) -> list[int]:
        """Return tokens [start, stop)."""
        return self._known(stop)[start:stop].tolist()

    def _known(self, stop: int) -> array[int]:
        """Return the tokens, with those of the answer if `stop` is behind the prompt."""
        if stop > len(self._tokens):
            self._tokens.extend(self._answer)
            self._answer = ()
        return self._tokens

    def prefix_key(self, stop: int) -> Hashable:
        """Return the key of a prefix; see PrefixIdentity."""
        links, tokens = self._links, self._known(stop)
        while len(links) <= stop // LINK:
            first = (len(links) - 1) * LINK
            links.append(_digest(links[-1], tokens[first : first + LINK]))
        link = links[stop // LINK]
        return _digest(link, tokens[stop - stop % LINK : stop]) if stop % LINK else link

    def fingerprint(self, stop: int) -> str:
        """Return the fingerprint of a prefix; see PromptContent."""
        key = self.prefix_key(stop)
        assert isinstance(key, bytes)
        return f"{stop}:{key.hex()}"


def _digest(link: bytes, tokens: array[int]) -> bytes:
    return blake2b(link + tokens.tobytes(), digest_size=16).digest()
