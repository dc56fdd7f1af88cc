"""Errors that the user has to fix, each with a clear one-line message and exit code 2 on the command line.

The values that messages quote come from files and options. They are escaped and shortened here, wherever the message is
written.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Any

MOST_SHOWN = 200
"""Maximum number of characters of one quoted value in a message."""
MOST_LINE = 4000
"""Maximum number of characters in a message. The message that lists all known formats has 1,500."""
_LONG = re.compile(rf"\S{{{MOST_SHOWN + 1},}}|'[^']{{{MOST_SHOWN},}}'|\"[^\"]{{{MOST_SHOWN},}}\"")


class _OneLine(Exception):
    """Exception whose message is one line of printable text, however long and raw the quoted values are."""

    def __init__(self, message: object = "") -> None:
        super().__init__(one_line(str(message)))


class UserError(_OneLine):
    """Bad input: the message names the file, line or key, the problem and the correct form."""


class Interrupted(_OneLine):
    """Interruption by the user of a command that keeps the results obtained so far; the message says what is kept."""


class PolicyError(_OneLine):
    """Violation of a policy's contract; the message names the policy, the simulated time and the reason."""


class NotForPipelines(PolicyError):
    """Contract violation by a scheduler that plans a request again while its last token is still in the pipeline."""


def one_line(text: str) -> str:
    """Return a message as one line: line breaks become spaces, control characters and lone surrogates are escaped, and
    the middle of words and quoted strings longer than MOST_SHOWN characters is left out."""
    line = " ".join(text.split())
    if not line.isprintable():
        line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in line)
    if len(line) > MOST_SHOWN:
        line = _LONG.sub(lambda found: _shortened(found[0]), line)
    return _shortened(line, MOST_LINE)


def shown(value: Any) -> str:
    """Return an input value as messages quote it: its `repr`, cut to MOST_SHOWN characters."""
    if isinstance(value, str) and len(value) > MOST_SHOWN:
        value = value[:MOST_SHOWN] + value[-MOST_SHOWN:]  # most of the omitted part need not be escaped
    try:
        return _shortened(one_line(repr(value)))
    except (ValueError, RecursionError):  # a number with thousands of digits; deeply nested lists
        return f"a {type(value).__name__} too large to show"


def _shortened(text: str, most: int = MOST_SHOWN) -> str:
    if len(text) <= most:
        return text
    tail = most // 8
    return f"{text[: most - tail - 3]}...{text[-tail:]}"


def suggest(word: str, choices: Iterable[str], most: int = MOST_SHOWN) -> str:
    """Return ` (did you mean "x"?)` for the closest choice, or the list of choices if none is close. A long list is cut
    to `most` characters in total, or to fewer if the word is long."""
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
    """Return as many of the first names as fit in `most` characters, commas included, but at least one."""
    ends = itertools.accumulate(len(name) + 2 for name in names)
    return names[: max(sum(end <= most for end in ends), 1)]
