"""Tokens of texts and of answers, and the identity of prompts by their tokens."""

from __future__ import annotations

import re
from array import array
from collections.abc import Hashable, Sequence
from copy import copy
from hashlib import blake2b
from typing import overload
from zlib import crc32

from servesim.draws import uniform_one

MOST_ANSWERS = 128
"""Maximum number of answers to one prompt, as in OpenAI's API."""
LINK = 16
"""Number of tokens from one link of the chain of digests to the next."""
_PIECES = re.compile(r" ?[^\W\d_]{1,5}|\d{1,3}| ?[^\w\s]|\s+|_|.", re.DOTALL)
_COMMON = """the of and to in is it that was for on are as with his they at be this from have or by one had not but
what all were when we there can an your which their said if do will each about how up out them then she many some so
these would other into has more her two like him see time could no make than first been its who now my"""
_WORDS = [f" {word}" for word in _COMMON.split()]
PERIODS = 2 * len(_WORDS)
"""Number of tokens of an answer, after its first, in which any text occurs that occurs later."""
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


class Words(Sequence[int]):
    """Answer of `length` tokens, as token ids: common words after one that no other answer begins with, so that two
    answers to one prompt are different texts. Split again, its text has the same tokens. `row` and `sample` (0: the
    first) tell which answer it is; `chat`: it begins without a space."""

    __slots__ = ("_first", "_length", "_start")

    def __init__(self, row: int, length: int, sample: int = 0, chat: bool = False) -> None:
        name, rest = "", row if sample == 0 else -(row * MOST_ANSWERS + sample)  # further samples count from the end
        for _ in range(5):
            rest, letter = divmod(rest, len(_LETTERS))
            name = _LETTERS[letter] + name
        self._first = name if chat else " " + name
        self._start = int(uniform_one(0, "answer", row) * len(_WORDS))
        self._length = length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> list[int]: ...
    def __getitem__(self, at: int | slice) -> int | list[int]:
        if isinstance(at, slice):
            return [token_of(piece) for piece in self.pieces(*at.indices(self._length)[:2])]
        return token_of(self.pieces(at, at + 1)[0])

    def pieces(self, start: int, stop: int) -> list[str]:
        """Return the text of tokens [start, stop), one piece for each."""
        words, first, count = _WORDS, self._start, len(_WORDS)
        found = [words[(first + i) % count] for i in range(start, min(stop, self._length))]
        if start == 0 and found:
            found[0] = self._first
        return found

    def first(self, length: int) -> Words:
        """Return the answer that has its first `length` tokens alone."""
        found = copy(self)
        found._length = length
        return found

    def text(self, start: int, stop: int) -> str:
        """Return the text of tokens [start, stop)."""
        return "".join(self.pieces(start, stop))


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
