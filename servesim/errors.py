"""Errors that are the user's to fix: one clear line each, exit code 2 on the command line.

What they echo comes from files and options: it is escaped and shortened here, wherever the message is written.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Any

MOST_SHOWN = 200
"""Most characters of one value in a message."""
MOST_LINE = 4000
"""Most characters of a message: one of servesim's own, with all formats it knows, has 1,500."""
_LONG = re.compile(rf"\S{{{MOST_SHOWN + 1},}}|'[^']{{{MOST_SHOWN},}}'|\"[^\"]{{{MOST_SHOWN},}}\"")


class _OneLine(Exception):
    """An exception whose message is one line of printable text, however long and raw what it quotes."""

    def __init__(self, message: object = "") -> None:
        super().__init__(one_line(str(message)))


class UserError(_OneLine):
    """Bad input: names the file, line or key, what is wrong and what would be right."""


class Interrupted(_OneLine):
    """The user interrupted a command that keeps what it has done so far: says what is kept."""


class PolicyError(_OneLine):
    """A policy broke its contract: names the policy, the simulated time and the reason."""


class NotForPipelines(PolicyError):
    """A scheduler plans a request again while its last token is still on its way through a pipeline."""


class HeldWhileWaiting(PolicyError):
    """Nothing runs: the first request in line needs memory that waiting requests hold for KV from elsewhere."""


def one_line(text: str) -> str:
    """Return a message as one line: blanks for line ends, control characters and lone surrogates escaped, the middle
    of words and quotations of more than MOST_SHOWN characters left out."""
    line = " ".join(text.split())
    if not line.isprintable():
        line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in line)
    if len(line) > MOST_SHOWN:
        line = _LONG.sub(lambda found: _shortened(found[0]), line)
    return _shortened(line, MOST_LINE)


def shown(value: Any) -> str:
    """Return a value of the input as a message quotes it: its `repr`, of at most MOST_SHOWN characters."""
    if isinstance(value, str) and len(value) > MOST_SHOWN:
        value = value[:MOST_SHOWN] + value[-MOST_SHOWN:]  # what is left out below, and more, need not be escaped
    try:
        return _shortened(one_line(repr(value)))
    except (ValueError, RecursionError):  # a number of thousands of digits; lists too deep
        return f"a {type(value).__name__} too large to show"


def _shortened(text: str, most: int = MOST_SHOWN) -> str:
    if len(text) <= most:
        return text
    tail = most // 8
    return f"{text[: most - tail - 3]}...{text[-tail:]}"


def suggest(word: str, choices: Iterable[str], most: int = MOST_SHOWN) -> str:
    """` (did you mean "x"?)` for the closest choice, or the list of choices when none is close, of a long one the
    beginning, `most` characters in all, or fewer behind a long word."""
    names = sorted(choices)
    close = difflib.get_close_matches(word[:MOST_SHOWN], names, n=1, cutoff=0.6)
    if close:
        return f' (did you mean "{close[0]}"?)'
    if not names:
        return ""
    listed = _shorter(names, most - 20 - max(min(len(word), MOST_SHOWN) - 40, 0))
    more = f" and {len(names) - len(listed)} more" if len(listed) < len(names) else ""
    return f" (choose from: {', '.join(listed)}{more})"


def _shorter(names: Sequence[str], most: int) -> Sequence[str]:
    """Return the first names that fit `most` characters, commas included; one at least."""
    ends = itertools.accumulate(len(name) + 2 for name in names)
    return names[: max(sum(end <= most for end in ends), 1)]
