"""Experiments in separate processes, so that one that fails or crashes does not affect the others.

`python -m servesim_lab.claims.worker NAME [FOLDER]` prints the experiment's document and its CPU seconds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servesim.errors import UserError
from servesim.experiments.documents import plain

from . import Experiment, find

COMMAND = (sys.executable, "-m", "servesim_lab.claims.worker")
ANSWER = "servesim experiment: "
"""Prefix of the result line, since an experiment's libraries may print too."""


@dataclass(frozen=True)
class Done:
    """Finished experiment: its document, or a one-line error."""

    name: str
    document: dict[str, Any] | None
    error: str = ""
    cpu_s: float = 0.0


def run(one: Experiment, folder: Path | None) -> Done:
    """Run an experiment in this process. A UserError (an invalid scenario) propagates, and any other error from an
    edited scenario becomes a UserError."""
    began = time.process_time()
    edited = folder / f"{one.name}.yaml" if folder is not None else None
    try:
        document: dict[str, Any] = plain(one.document(folder))
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        if edited is None or not edited.is_file():
            raise
        raise UserError(
            f"scenario {edited}: the experiment cannot run on it: {type(error).__name__}: {error}"
        ) from error
    return Done(one.name, document, cpu_s=time.process_time() - began)


def run_all(
    chosen: Sequence[Experiment], folder: Path | None, jobs: int, on_done: Callable[[Done], None]
) -> Generator[Done, None, None]:
    """Run experiments in `jobs` concurrent processes; yield all results in order, even if some experiments fail.
    `on_done` receives each as soon as it has ended."""
    running: list[subprocess.Popen[str]] = []
    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(_ask, one.name, folder, running) for one in chosen]
        shown, kept = 0, set()
        try:
            for future in as_completed(futures):
                on_done(future.result())
                kept.add(future)
                while shown < len(futures) and futures[shown] in kept:
                    yield futures[shown].result()
                    shown += 1
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in running:
                process.kill()
            raise


def _ask(name: str, folder: Path | None, running: list[subprocess.Popen[str]]) -> Done:
    arguments = [name, str(folder)] if folder is not None else [name]
    pipe = subprocess.PIPE
    with subprocess.Popen([*COMMAND, *arguments], stdout=pipe, stderr=pipe, text=True, encoding="utf-8") as process:
        running.append(process)
        out, err = process.communicate()
    for line in out.splitlines():
        if line.startswith(ANSWER):
            return Done(name, **json.loads(line.removeprefix(ANSWER)))
    last = (err.strip().splitlines() or [f"the process ended with code {process.returncode}"])[-1]
    return Done(name, None, last.removeprefix("servesim.errors."))


def main(name: str, folder: str | None = None) -> None:
    """Print one line with the result."""
    (one,) = find(name)
    try:
        done = run(one, Path(folder) if folder is not None else None)
    except UserError as error:
        done = Done(name, None, str(error))
    print(ANSWER + json.dumps({"document": done.document, "error": done.error, "cpu_s": done.cpu_s}))


if __name__ == "__main__":
    main(*sys.argv[1:])
