"""Warnings: notes that could change the reader's decision."""

from __future__ import annotations

from collections.abc import Iterable


class Warn(str):
    """Note that could change the decision; its text says what to do.

    A note is a warning if a reader who misses it may decide wrongly: a setting has no effect or contradicts the trace,
    requests are served by a model they did not ask for, the run is too short to tell, or many times were not measured.
    Assumptions, sources, and limits that the run never reached are plain strings. Those who write a note decide, and
    list the most serious first: commands print at most three warnings unless they are asked for all (`-v`).
    """

    __slots__ = ()


def split_notes(notes: Iterable[str]) -> dict[str, list[str]]:
    """Return notes as the `warnings` and `notes` of a document, in the same order, each once."""
    found = list(dict.fromkeys(notes))
    return {
        "warnings": [str(note) for note in found if isinstance(note, Warn)],
        "notes": [note for note in found if not isinstance(note, Warn)],
    }
