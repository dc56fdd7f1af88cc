"""Progress of experiments on stderr: a bar with the name of the latest finished run, or occasional plain lines in a
pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as RichProgress

from servesim.experiments.runner import Progress

FIRST_S, EVERY_S = 5.0, 15.0
"""Seconds until the first plain line, and between later ones."""


class Bar:
    """Progress bar with the number of finished runs, the latest one, the best so far, and the estimated remaining
    time."""

    def __init__(self, command: str, quiet: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._command, self._quiet, self._clock = command, quiet, clock
        columns = (
            TextColumn(command),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.description}", markup=False),
        )
        console = Console(stderr=True)
        shown = sys.stderr.isatty() and not quiet
        self._bar = RichProgress(*columns, console=console, transient=True) if shown else None
        self._task: Any = None
        self._began = self._clock()
        self._next = self._began + FIRST_S
        self._computed = self._before = self._last = 0
        self._said = False

    def __enter__(self) -> Bar:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._said and kind is None:
            print(f"{self._command}: {self._before + self._last} runs in {_time(self._clock() - self._began)}",
                  file=sys.stderr)  # fmt: skip

    def __call__(self, progress: Progress) -> None:
        if progress.damage is not None:
            print(f"computed again: {progress.damage}", file=sys.stderr)
        if progress.done <= self._last:  # the next round of a search
            self._before += self._last
        self._last = progress.done
        self._computed += progress.computed
        done, total = self._before + progress.done, self._before + progress.total + (progress.left or 0)
        words = [progress.name, self._left(done, total, progress.left is not None), progress.best]
        said = ", ".join(word for word in words if word)
        if self._bar is not None:
            self._task = self._bar.add_task("") if self._task is None else self._task
            self._bar.update(self._task, completed=done, total=total, description=said)
        elif self._clock() >= self._next and not self._quiet:
            self._next = self._clock() + EVERY_S
            self._said = True
            about = "about " if progress.left and done < total else ""
            print(f"{self._command}: {done} of {about}{total} runs: {said}", file=sys.stderr, flush=True)

    def _left(self, done: int, total: int, guessed: bool) -> str:
        """Return the estimated remaining time, from the mean duration of the runs computed so far."""
        if not self._computed or done >= total:
            return ""
        each = (self._clock() - self._began) / self._computed
        return f"about {_time(each * (total - done))} left" + (" if the search goes as expected" if guessed else "")


def _time(seconds: float) -> str:
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
