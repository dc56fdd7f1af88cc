"""Errors that are the user's to fix: one clear line each, exit code 2 on the command line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Bad input: names the file, line or key, what is wrong and what would be right."""


class Interrupted(Exception):
    """The user interrupted a command that keeps what it has done so far: says what is kept."""


class PolicyError(Exception):
    """A policy broke its contract: names the policy, the simulated time and the reason."""


class NotForPipelines(PolicyError):
    """A scheduler plans a request again while its last token is still on its way through a pipeline."""


def suggest(word: str, choices: Iterable[str]) -> str:
    """` (did you mean "x"?)` for the closest choice, or the list of choices when none is close."""
    names = sorted(choices)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if close:
        return f' (did you mean "{close[0]}"?)'
    return f" (choose from: {', '.join(names)})" if names else ""
