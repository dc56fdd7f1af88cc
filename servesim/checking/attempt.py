"""One run of a world: its outcome, or one line that states what went wrong."""

from __future__ import annotations

import random
import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import numpy as np

from servesim.checking.world import World
from servesim.contracts import KVAllocator, Request, Scheduler, State
from servesim.engine.core import EngineCore
from servesim.engine.fast.core import FastCore
from servesim.errors import NotForPipelines, PolicyError, UserError
from servesim.run.agreement import Outcome

LOST = "are no longer in any queue"
"""Words with which the engine reports requests that a policy has lost."""
PATIENCE_S = 60
"""Maximum time in seconds that a run may take; a world normally takes a fraction of a second."""


@dataclass(frozen=True)
class Attempt:
    """A run of a world."""

    outcome: Outcome | None
    """Outcome of the run, or None if it did not finish."""
    error: str = ""
    unsuited: bool = False
    """Whether the policies report that they cannot serve this world together."""
    again: bool = False
    """Whether the failure is due to a request that was planned again while its last token was in flight in a
    pipeline."""


class CheckedCore(EngineCore):
    """Core that detects what the engine does not check: lost requests."""

    def __init__(self, scheduler: Scheduler, kv: KVAllocator, check: bool = False) -> None:
        super().__init__(scheduler, kv, check)
        self._seen: list[Request] = []

    def add(self, request: Request, output_len: int, now: int) -> None:
        self._seen.append(request)
        super().add(request, output_len, now)

    def abort(self, request: Request, now: int, reason: str = "abort") -> None:
        if request in self.lost():
            raise PolicyError(f"{self.scheduler.name} at {now} ns: 1 requests {LOST}")
        super().abort(request, now, reason)

    def lost(self) -> list[Request]:
        """Return requests that have not left and are in no queue; the engine holds those whose remote KV is loading."""
        queued = {*self.scheduler.running, *self.scheduler.waiters()}
        staying = [request for request in self._seen if request.state < State.FINISHED]
        return [each for each in staying if each not in queued and each.state is not State.LOADING]

    def stuck(self) -> list[str]:
        """Return the names of requests that have not left: only the lost ones if there are any."""
        return [request.name for request in self.lost() or self._seen if request.state < State.FINISHED]


class CheckedFastCore(CheckedCore, FastCore):
    """Core that detects lost requests in fast mode."""


class CheckedWorld(World):
    """World whose cores detect lost requests."""

    core_classes = {"reference": CheckedCore, "fast": CheckedFastCore}  # noqa: RUF012


def attempt(world: World, mode: str, *, check: bool = False, seed: int = 0) -> Attempt:
    """Run a world. `check` verifies all invariants after every step. `seed` seeds the global generators of `random` and
    `numpy.random`, which must not affect the run; their state is restored."""
    cores: list[CheckedCore] = []
    try:
        with _seeded(seed), _patience():
            cluster = CheckedWorld(**vars(world)).cluster(mode, check)
            cores += [core for replica in cluster.replicas if isinstance(core := replica.core, CheckedCore)]
            cluster.run()
    except UserError as error:
        return Attempt(None, str(error), unsuited=True)
    except PolicyError as error:
        ended = f"{error}".endswith((LOST, "wait"))  # run ended without some of its requests
        names = [name for core in cores for name in core.stuck()] if ended else []
        again = isinstance(error, NotForPipelines)
        return Attempt(None, f"{error}{f' ({names[0]})' if names else ''}", again=again)
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        return Attempt(None, f"{type(error).__name__}: {error} ({Path(at.filename).name} line {at.lineno})")
    return Attempt(Outcome.of(cluster))


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002


@contextmanager
def _patience() -> Iterator[None]:
    """Stop a run that does not finish, if the operating system supports alarm signals."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, _too_long)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _too_long(number: int, frame: FrameType | None) -> None:
    at = f" (in {frame.f_code.co_name}, {Path(frame.f_code.co_filename).name} line {frame.f_lineno})" if frame else ""
    raise PolicyError(f"a run of a few requests did not end within {PATIENCE_S} s{at}")
