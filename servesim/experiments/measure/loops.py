"""Client loops against a server: the requests sent at each point, and the answers."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass

from servesim.draws import uniform
from servesim.errors import UserError
from servesim.experiments.measure.answers import Answer, Target, ask

SHORTEST = 0.8
"""Lower bound of drawn lengths as a fraction of the nominal ones, which are the upper bound. This is the convention of
InferenceX's benchmark scripts, which `servesim accuracy` follows in replaying cells. Equal lengths would keep the
clients in lockstep."""
PROBES = (64, 512)
"""Word counts of the two probe prompts that determine the number of tokens per word."""
TOKENS_A_WORD = (0.5, 8.0)
"""Minimum and maximum plausible number of tokens per word. The words below are common ones: each is one token in
byte-pair vocabularies and more than one in byte vocabularies."""
OFF = 0.25
"""Maximum relative deviation of a prompt's token count from the estimate based on the probes, with another FEW tokens
allowed."""
FEW = 32
_TEXT = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea body information "
    "back parent face others level office door health person art war history party result change morning reason "
    "research girl guy moment air teacher force education foot boy age policy music market sense nation plan college "
    "interest death experience effect use class control field development role effort rate heart drug show leader "
    "light voice wife police mind price report decision son view town road arm difference value building action "
    "season society tax director position player record paper space ground form event official matter center couple "
    "site project activity star table need court oil half situation cost industry figure street image phone data "
    "picture practice piece land product doctor wall patient worker news test movie north love support technology"
)
WORDS = _TEXT.split()


@dataclass(frozen=True)
class Point:
    """One loop of `clients` clients, each of which sends its next request when the previous one has been answered."""

    kind: str
    """Kind of loop: idle, ladder, saturated, or burst (of as many requests as clients)."""
    clients: int
    prompt: int
    """Nominal prompt length in tokens."""
    output: int
    """Nominal output length in tokens."""
    requests: int

    @property
    def name(self) -> str:
        """Name used for files and in progress output."""
        return f"{self.kind}-c{self.clients}-p{self.prompt}-o{self.output}"


@dataclass(frozen=True)
class Prompts:
    """Prompts for a server: random words, so that no two prompts share a prefix that a cache could hold."""

    tokens_a_word: float
    fixed: float
    """Number of tokens in a prompt without words. They come from a template."""

    def write(self, tokens: int) -> str:
        """Return a prompt of about `tokens` tokens."""
        return _words(max(round((tokens - self.fixed) / self.tokens_a_word), 1))

    def check(self, where: str, text: str, answer: Answer) -> None:
        """Raise UserError if the server's token count is implausible for this prompt."""
        expected = self.fixed + self.tokens_a_word * (text.count(" ") + 1)
        if abs(answer.prompt_tokens - expected) > OFF * expected + FEW:
            raise UserError(
                f"{where}: usage reports {answer.prompt_tokens} tokens for a prompt of about {expected:.0f}, judging "
                "by earlier answers"
            )


def _words(count: int) -> str:
    return " ".join(random.Random(secrets.token_bytes(16)).choices(WORDS, k=count))


async def probe(target: Target, tokens: int) -> Prompts:
    """Send two short prompts, which also warm up the server, and return a prompt generator based on its token counts.
    Raise UserError if the counts are implausible."""
    counts = [(await ask(target, _words(words), tokens)).prompt_tokens for words in PROBES]
    each = (counts[1] - counts[0]) / (PROBES[1] - PROBES[0])
    if not TOKENS_A_WORD[0] <= each <= TOKENS_A_WORD[1]:
        raise UserError(
            f"{target.address}{target.path}: usage reports {counts[0]} tokens for {PROBES[0]} words and "
            f"{counts[1]} for {PROBES[1]}, so it does not count prompt tokens correctly"
        )
    return Prompts(each, counts[0] - each * PROBES[0])


async def closed_loop(target: Target, prompts: Prompts, point: Point, seed: int, seconds: float) -> list[Answer]:
    """Return the answers of a point in the order their requests were sent. After `seconds`, clients send no more
    requests, but each client sends at least one. The first UserError ends the loop."""
    shares = [SHORTEST + (1 - SHORTEST) * uniform(seed, what, range(point.requests)) for what in ("prompt", "output")]
    texts = [prompts.write(round(float(share) * point.prompt)) for share in shares[0]]
    tokens = [max(round(float(share) * point.output), 1) for share in shares[1]]
    until, where = time.monotonic() + seconds, f"{target.address}{target.path}"
    answers: list[Answer] = []
    sent = iter(range(point.requests))

    async def client() -> None:
        for i in sent:
            if i >= point.clients and time.monotonic() > until:
                return
            answer = await ask(target, texts[i], tokens[i])
            prompts.check(where, texts[i], answer)
            answers.append(answer)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(point.clients, point.requests)):
                group.create_task(client())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return sorted(answers, key=lambda answer: answer.sent_ns)


def means(answers: Sequence[Answer]) -> tuple[float, float]:
    """Return mean TTFT and mean TPOT in ms. TPOT is averaged over answers of more than one token and is 0 if there are
    none."""
    ttft = [answer.first_ns - answer.sent_ns for answer in answers]
    tpot = [(a.last_ns - a.first_ns) / (a.output_tokens - 1) for a in answers if a.output_tokens > 1]
    return sum(ttft) / len(ttft) / 1e6, sum(tpot) / max(len(tpot), 1) / 1e6
