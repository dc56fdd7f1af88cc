"""Complete measurement: idle prompts, a ladder of client counts, a saturated loop, and repeats of all of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product

from servesim.errors import UserError
from servesim.experiments.measure.answers import Answer, Target
from servesim.experiments.measure.clients import Client
from servesim.experiments.measure.loops import Point, closed_loop, probe
from servesim.experiments.measure.startup import Facts, ask_server, served_model, together
from servesim.experiments.measure.wire import Address

WARM_OUTPUT = 16
"""Number of output tokens for the warm-up requests, whose times are not recorded."""
BEYOND = 1.25
"""Number of clients in the saturated loop, as a multiple of the sequences that the server runs concurrently."""
UNTOLD_SEQS = 205
"""Number of sequences assumed if the server's max_num_seqs is unknown. BEYOND times this number is 256, vLLM's default
for most GPUs."""
BUSY = 0.8
"""Share of a burst's time for which this process may work before a note says that it was the client that was slow."""
BUNCHED = 1.1
"""Number of tokens per piece of text above which a note says that tokens do not arrive one by one."""


@dataclass(frozen=True)
class Plan:
    """Loads to measure."""

    idle: tuple[int, ...] = (128, 512, 2048, 8192)
    """Prompt lengths in tokens for the idle loops. Each loop has one client."""
    clients: tuple[int, ...] = (4, 16, 64)
    """Client counts on the ladder."""
    saturated: int | None = None
    """Number of clients in the saturated loop; 0 means no such loop. The default is BEYOND times the number of
    sequences that the server runs concurrently."""
    prompt: int = 1024
    output: int = 256
    """Output length for the ladder and the saturated loop; idle loops use half of it."""
    idle_requests: int = 16
    per_client: int = 10
    """Requests per client, and at least 40 per point; `servesim accuracy` replays the same number for a cell."""
    at_least: int = 40
    repeats: int = 2
    minutes: float = 20.0
    seed: int = 0
    bursts: tuple[tuple[int, int, int], ...] = ()
    """Requests sent at once, with their prompt and output lengths, after all other loops."""
    whole: bool = False
    """Whether a measurement that takes longer than `minutes` fails; if not, loops are cut to their share of it."""

    def points(self, max_num_seqs: int | None, max_model_len: int | None) -> tuple[list[Point], list[str]]:
        """Return the points in the order in which they are measured, and notes on those that do not fit the server."""
        seqs = max_num_seqs or UNTOLD_SEQS
        beyond = round(BEYOND * seqs) if self.saturated is None else self.saturated
        points = [Point("idle", 1, prompt, max(self.output // 2, 2), self.idle_requests) for prompt in self.idle]
        for kind, clients in [*(("ladder", c) for c in self.clients), *((("saturated", beyond),) if beyond else ())]:
            points.append(Point(kind, clients, self.prompt, self.output, max(self.per_client * clients, self.at_least)))
        points += [Point("burst", count, prompt, output, count) for count, prompt, output in self.bursts]
        fits = [p for p in points if max_model_len is None or p.prompt + p.output <= max_model_len]
        beyond_it = f"tokens exceed the server's max_model_len of {max_model_len}"
        notes = [f"{p.name}: excluded because {p.prompt} + {p.output} {beyond_it}" for p in points if p not in fits]
        if not fits:
            raise UserError(f"no point fits the server's max_model_len of {max_model_len}: specify shorter lengths")
        return fits, notes


@dataclass(frozen=True)
class Measured:
    """One loop and its answers."""

    point: Point
    repeat: int
    answers: Sequence[Answer]

    @property
    def name(self) -> str:
        """Name of the loop's file and cell."""
        return f"{self.point.name}-r{self.repeat}"


@dataclass(frozen=True)
class Measurement:
    """Results of all loops, and the known facts about the server."""

    runs: Sequence[Measured]
    facts: Facts
    notes: list[str] = field(default_factory=list)


async def measure(
    address: Address,
    plan: Plan,
    *,
    served_name: str | None = None,
    chat: bool = False,
    timeout_s: float = 300.0,
    told: Facts | None = None,
    client: Callable[[str], Client] | None = None,
    on_start: Callable[[Sequence[Point], Facts], None] = lambda points, facts: None,
    on_run: Callable[[Measured, int], None] = lambda run, total: None,
) -> Measurement:
    """Measure a server. `told` holds facts from the user, the flags or the log, which override those from the server.
    `client` maps the model's Hugging Face name to a client that runs the request loops in place of servesim's own.
    Raise UserError at the first answer that is late, cut off, missing or implausible."""
    name, listed = await served_model(address, served_name, min(timeout_s, 30.0))
    facts = together(told or {}, await ask_server(address), listed)
    target = Target(address, name, chat, timeout_s)
    points, notes = plan.points(facts.get("max_num_seqs"), facts.get("max_model_len"))
    sender = None if client is None else client(str(facts.get("model", name)))
    if sender is not None:
        notes.append(f"requests were sent by {sender.name}, with prompts built from tokens of {sender.tokenizer}")
    on_start(points, facts)
    prompts = await probe(target, WARM_OUTPUT)
    send = partial(closed_loop, target, prompts) if sender is None else partial(sender.loop, target)
    runs: list[Measured] = []
    total, end = len(points) * plan.repeats, time.monotonic() + 60 * plan.minutes
    try:
        async with asyncio.timeout(60 * plan.minutes if plan.whole else None):
            for repeat, point in product(range(1, plan.repeats + 1), points):
                left = max(end - time.monotonic(), 0.0)
                share = left if plan.whole else left / (total - len(runs))
                seed, busy = plan.seed + len(runs), (time.process_time(), time.monotonic())
                try:
                    answers = await send(point, seed, share)
                except UserError as error:
                    if point.kind != "burst":
                        raise  # a server may take one request and not many at once
                    raise UserError(f"{point.clients} requests at once: {error}") from None
                runs.append(Measured(point, repeat, answers))
                notes += _busy(runs[-1], time.process_time() - busy[0], time.monotonic() - busy[1])
                on_run(runs[-1], total)
    except TimeoutError:
        raise UserError(
            f"{address}: the measurement did not finish within {plan.minutes:g} minutes (increase --minutes)"
        ) from None
    return Measurement(runs, facts, [*notes, *_notes(runs)])


def _busy(run: Measured, seconds: float, taken: float) -> list[str]:
    """Return a note if reading a burst's answers took up this process, so that its times may be the client's."""
    if run.point.kind != "burst" or seconds < BUSY * taken:
        return []
    return [f"{run.name}: this client was busy {seconds / taken:.0%} of the time, so its times may be too long"]


def _notes(runs: Sequence[Measured]) -> list[str]:
    """Return notes for readers of the results."""
    notes = [
        f"{run.name}: {len(run.answers)} of {run.point.requests} requests finished in the time available"
        for run in runs
        if len(run.answers) < run.point.requests
    ]
    answers = [answer for run in runs for answer in run.answers]
    short = sum(answer.output_tokens < answer.asked for answer in answers)
    if short:
        notes.append(
            f"{short} of {len(answers)} answers were shorter than requested, because the server ignores ignore_eos. "
            "The actual lengths are recorded"
        )
    each = sum(a.output_tokens for a in answers) / sum(a.chunks for a in answers)
    if each > BUNCHED:
        notes.append(
            f"each piece of text had {each:.2f} tokens (a stream interval, or drafts), so TTFT is the time of the "
            "first piece"
        )
    return notes
