"""One request on its way through a replica."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal, NamedTuple, Protocol

from mypy_extensions import mypyc_attr

LAST = 1 << 62
SampleForm = Literal["children", "prefix-first", "fork"]
"""Ways an engine serves requests for several samples (`servesim.workload.samples`)."""


class State(IntEnum):
    """The place of a request in its life."""

    LOADING = -1
    """Waits, outside of all queues, for KV that comes from elsewhere into memory it holds."""
    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2
    SWAPPED = 3
    """Waits, with its KV in host memory."""
    FINISHED = 4
    REJECTED = 5
    ABORTED = 6


class PrefixIdentity(Protocol):
    """Which prefixes of prompts are the same."""

    def prefix_key(self, stop: int) -> Hashable:
        """Return a value equal for two requests exactly when their first `stop` tokens are equal. Compare it and look
        it up, no more: which value it is depends on what was asked before."""


class PromptContent(PrefixIdentity, Protocol):
    """The identity of one request's tokens, as far as prefix sharing needs it."""

    def fingerprint(self, stop: int) -> str:
        """Return a text equal for two requests exactly when their first `stop` tokens are equal. It depends on nothing
        but these tokens: hash this, or sort by it."""


class Deadline(NamedTuple):
    """The time at which a client's patience ends, as the engine hears of it."""

    ns: int
    first_token: bool
    """Only for the first token: once that has come the deadline is void."""
    reason: str


@mypyc_attr(allow_interpreted_subclasses=True)
class CounterKeeper:
    """Counts for requests whose counters all move alike, and writes them when one is read."""

    def settle(self, request: Request) -> None:
        """Bring the counters of a request up to date, or of all that this keeper counts for."""
        raise NotImplementedError


@dataclass(slots=True, eq=False)
class Request:
    """Identity, lengths and progress of one request. Compared by identity, ordered by `row`.

    The true output length is the engine's secret (`_end_tokens`); a policy that declares
    `needs = {"output_len"}` asks its context for it. Progress is written by the engine, through underscored fields.
    """

    row: int
    name: str
    prompt_len: int
    max_tokens: int
    arrival_ns: int
    priority: int = 0
    salt: str = ""
    content: PromptContent | None = None
    session: str = ""
    """Conversation or agent it belongs to; empty: stands alone."""
    tenant: str = ""
    """Whose it is, for fairness."""
    slo_class: str = ""
    """Class of service, for goodput."""
    predicted_output_len: int = 0
    """Output tokens as a predictor of stated error sees them; filled by the workload (0: no prediction)."""
    deadlines: tuple[Deadline, ...] = ()
    """When its client gives up."""
    _stops: bool = False  # the engine's: its last token is a stop token, also where that is the last allowed
    owner: Request | None = None
    """The request whose prompt this one computes, on a replica of prompts; its memory there is kept when it has
    finished, until the KV has been read (servesim.features.handoff.part)."""
    leg: Request | None = None
    """The request that computes its prompt on another replica, if any does."""
    parent: ParentRequest | None = None
    """The parent of one sample of several (n > 1)."""
    sample: int = 0
    """0: the only one; from 1: which of several; -1: computes their prompt for the prefix cache and nothing else."""

    state: State = State.WAITING
    _end_tokens: int = 0  # the engine's: num_tokens at which it ends
    _order: int = LAST  # the engine's: its place in the batch among those its keeper counts for
    _walk: Any = None  # the engine's: the steps it will take
    _keeper: CounterKeeper | None = None  # counts for it, until it stands for itself again
    _num_tokens: int = field(init=False)
    _num_computed_tokens: int = field(default=0, init=False)
    _num_output_placeholders: int = field(default=0, init=False)
    _last_token_ns: int = field(default=-1, init=False)
    num_draft_tokens: int = 0
    """Drafts attached for verification in the next step."""
    num_preemptions: int = 0

    replica: int = -1
    """The replica it was sent to last; -1: none, or its samples were forked off another that was."""

    # Record of its life, filled in by the engine; -1: has not happened.
    scheduled_ns: int = -1
    first_token_ns: int = -1
    finished_ns: int = -1
    hit_tokens: int = 0
    """Prefix tokens found in the cache when first admitted."""
    loaded_tokens: int = 0
    """Tokens whose KV came from elsewhere, in all."""
    being_read: int = 0
    """Copies of its KV to elsewhere that are planned or under way: its memory is kept until they are done."""
    recomputed_tokens: int = 0
    """Tokens computed again because a preemption threw their KV away."""
    lost_tokens: int = 0
    """Tokens computed when it was preempted, until it is resumed."""
    reason: str = ""
    """Finish reason (length, stop), or why it was rejected or aborted."""
    model: str = ""
    """The model it asks for, where pools serve several; empty: any."""

    def __post_init__(self) -> None:
        self._num_tokens = self.prompt_len

    @property
    def num_tokens(self) -> int:
        """Prompt tokens plus output tokens delivered so far: all that the scheduler knows of."""
        if self._keeper is not None:
            self._keeper.settle(self)
        return self._num_tokens

    @num_tokens.setter
    def num_tokens(self, tokens: int) -> None:
        self._num_tokens = tokens

    @property
    def num_computed_tokens(self) -> int:
        """Tokens whose KV exists (in host memory, if swapped) or is being computed by a step in flight (advanced when
        scheduled)."""
        if self._keeper is not None:
            self._keeper.settle(self)
        return self._num_computed_tokens

    @num_computed_tokens.setter
    def num_computed_tokens(self, tokens: int) -> None:
        self._num_computed_tokens = tokens

    @property
    def num_output_placeholders(self) -> int:
        """Output tokens, drafts included, that steps in flight may still deliver."""
        if self._keeper is not None:
            self._keeper.settle(self)
        return self._num_output_placeholders

    @num_output_placeholders.setter
    def num_output_placeholders(self, tokens: int) -> None:
        self._num_output_placeholders = tokens

    @property
    def last_token_ns(self) -> int:
        """Time of its latest token; -1 if it has none."""
        if self._keeper is not None:
            self._keeper.settle(self)
        return self._last_token_ns

    @last_token_ns.setter
    def last_token_ns(self, ns: int) -> None:
        self._last_token_ns = ns

    @property
    def num_output_tokens(self) -> int:
        """Output tokens delivered so far."""
        if self._keeper is not None:
            self._keeper.settle(self)
        return self._num_tokens - self.prompt_len

    @property
    def num_sequences(self) -> int:
        """Sequences it is or will become: several where samples are forked off it once its prompt is computed."""
        return 1 + self.parent.unforked if self.parent is not None else 1

    def __repr__(self) -> str:
        return (
            f"<{self.name} {self.state.name.lower()} prompt={self.prompt_len} "
            f"computed={self.num_computed_tokens}/{self.num_tokens}>"
        )


@dataclass(slots=True, eq=False)
class ParentRequest:
    """The state that samples of one request share; each sample is itself a Request."""

    number: int
    """Number of the request, in all records."""
    members: list[Request] = field(default_factory=list)
    """The samples, first to last."""
    outputs: list[int] = field(default_factory=list)
    """Their true output lengths: the engine's secret."""
    unforked: int = 0
    """Number of them, at the end, that come to be when the prompt of the first has been computed."""
    replica: int = -1
    """The replica that serves it: samples share a prompt only there."""
    tokenized: bool = False
    """Whether the front end has read its prompt, which it does once."""
    num_gone: int = 0
    """Samples that have left."""
    reason: str = ""
    """Why the first that failed did."""

    @property
    def sent(self) -> list[Request]:
        """The samples that are with the engine, or were."""
        return self.members[: len(self.members) - self.unforked]

    def leave(self, request: Request) -> bool:
        """Note that a sample (or the request that computes the prompt for all) has left; return whether the whole
        request has."""
        failed = request.state is not State.FINISHED
        if failed and not self.reason:
            self.reason = request.reason
        if request.sample < 0:
            return failed
        self.num_gone += 1
        return self.num_gone == len(self.sent)

    @property
    def first_token_ns(self) -> int:
        """Time of the first token of any sample; -1 if there is none yet."""
        return min((r.first_token_ns for r in self.members if r.first_token_ns >= 0), default=-1)
