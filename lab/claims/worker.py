"""Experiments in separate processes, so that one that fails or crashes does not affect the others.

`python -m servesim_lab.claims.worker NAME [FOLDER]` prints each row of the experiment as it comes, then its document
and its CPU seconds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryFile
from typing import Any

from servesim.errors import UserError
from servesim.experiments.documents import plain

from . import Experiment, find
from .outcome import listening

COMMAND = (sys.executable, "-m", "servesim_lab.claims.worker")
ANSWER, ROW = "servesim experiment: ", "servesim row: "
"""Prefixes of the result line and of rows, since an experiment's libraries may print too."""
Told = Callable[[str, Mapping[str, Any]], None]
"""Function that is told the name of an experiment and a row of it."""


@dataclass(frozen=True)
class Done:
    """Finished experiment: its document, or a one-line error."""

    name: str
    document: dict[str, Any] | None
    error: str = ""
    cpu_s: float = 0.0


def run(one: Experiment, folder: Path | None, on_row: Told) -> Done:
    """Run an experiment in this process; `on_row` receives each row as it comes. A UserError (an invalid scenario)
    propagates, and any other error from an edited scenario becomes a UserError."""
    began = time.process_time()
    edited = folder / f"{one.name}.yaml" if folder is not None else None
    try:
        with listening(lambda row: on_row(one.name, plain(asdict(row)))):
            document: dict[str, Any] = plain(one.document(folder))
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        if edited is None or not edited.is_file():
            raise
        raise UserError(
            f"scenario {edited}: the experiment cannot run on it: {type(error).__name__}: {error}"
        ) from error
    return Done(one.name, document, cpu_s=time.process_time() - began)


def run_all(
    chosen: Sequence[Experiment], folder: Path | None, jobs: int, on_done: Callable[[Done], None], on_row: Told
) -> Generator[Done, None, None]:
    """Run experiments in `jobs` concurrent processes; yield all results in order, even if some experiments fail.
    `on_done` receives each as soon as it has ended, and `on_row` the rows in order: those of the first experiment that
    has not ended as they come, those of others when it is their turn."""
    running: list[subprocess.Popen[str]] = []
    heard: SimpleQueue[tuple[str, Mapping[str, Any]] | Done] = SimpleQueue()

    def ask(name: str) -> None:
        try:
            heard.put(_ask(name, folder, running, lambda row: heard.put((name, row))))
        except (OSError, ValueError) as error:
            heard.put(Done(name, None, str(error)))

    with ThreadPoolExecutor(jobs) as pool:
        for one in chosen:
            pool.submit(ask, one.name)
        order, rows, ended = deque(one.name for one in chosen), dict[str, list[Mapping[str, Any]]](), dict[str, Done]()
        try:
            while order:
                news = heard.get()
                if isinstance(news, Done):
                    on_done(news)
                    ended[news.name] = news
                else:
                    rows.setdefault(news[0], []).append(news[1])
                while order:
                    for row in rows.pop(order[0], []):
                        on_row(order[0], row)
                    if order[0] not in ended:
                        break
                    yield ended[order.popleft()]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in running:
                process.kill()
            raise


def _ask(
    name: str, folder: Path | None, running: list[subprocess.Popen[str]], on_row: Callable[[Mapping[str, Any]], None]
) -> Done:
    command = [*COMMAND, name] if folder is None else [*COMMAND, name, str(folder)]
    done = None
    with (
        TemporaryFile("w+", encoding="utf-8", errors="replace") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, encoding="utf-8") as process,
    ):
        running.append(process)
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(ROW):
                on_row(json.loads(line.removeprefix(ROW)))
            elif line.startswith(ANSWER):
                done = Done(name, **json.loads(line.removeprefix(ANSWER)))
        code = process.wait()
        errors.seek(0)
        last = (errors.read().strip().splitlines() or [f"the process ended with code {code}"])[-1]
    return done or Done(name, None, last.removeprefix("servesim.errors."))


def main(name: str, folder: str | None = None) -> None:
    """Print a line for each row, and one with the result."""

    def on_row(_: str, row: Mapping[str, Any]) -> None:
        print(ROW + json.dumps(row), flush=True)

    (one,) = find(name)
    try:
        done = run(one, Path(folder) if folder is not None else None, on_row)
    except UserError as error:
        done = Done(name, None, str(error))
    print(ANSWER + json.dumps({"document": done.document, "error": done.error, "cpu_s": done.cpu_s}))


if __name__ == "__main__":
    main(*sys.argv[1:])
