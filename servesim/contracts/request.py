"""One request as it passes through a replica."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal, NamedTuple, Protocol

from mypy_extensions import mypyc_attr

LAST = 1 << 62
SampleForm = Literal["children", "prefix-first", "fork"]
"""Ways in which an engine serves requests with several samples (`servesim.workload.samples`)."""


class State(IntEnum):
    """Stage of a request's life."""

    LOADING = -1
    """Waiting, outside of all queues, for remote KV to be loaded into memory that it holds."""
    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2
    SWAPPED = 3
    """Waiting, with its KV in host memory."""
    FINISHED = 4
    REJECTED = 5
    ABORTED = 6


RUNNING, PREEMPTED, SWAPPED, FINISHED = State.RUNNING, State.PREEMPTED, State.SWAPPED, State.FINISHED
"""Members that are read for every request. In Python 3.11, reading one from its class is a call."""


class PrefixIdentity(Protocol):
    """Identity of prompt prefixes: which ones are equal."""

    def prefix_key(self, stop: int) -> Hashable:
        """Return a value that is equal for two requests exactly when their first `stop` tokens are equal. Use it only
        for comparison and lookup: the value has no meaning."""


class PromptContent(PrefixIdentity, Protocol):
    """The identity of one request's tokens, as far as prefix sharing needs it."""

    def fingerprint(self, stop: int) -> str:
        """Return a string that is equal for two requests exactly when their first `stop` tokens are equal. It depends
        only on these tokens, so use it for hashing or sorting."""


class Deadline(NamedTuple):
    """Time at which a client gives up, as passed to the engine."""

    ns: int
    first_token: bool
    """Whether it applies only to the first token; once that has been delivered, the deadline is void."""
    reason: str


@mypyc_attr(allow_interpreted_subclasses=True)
class CounterKeeper:
    """Keeper of the counters of requests that all advance alike; it writes the counters when one is read."""

    def settle(self, request: Request) -> None:
        """Update the counters of a request, or of all requests of this keeper."""
        raise NotImplementedError


@dataclass(slots=True, eq=False)
class Request:
    """Identity, lengths and progress of one request. Compared by identity, ordered by `row`.

    The true output length is private to the engine (`_end_tokens`); a policy that declares `needs = {"output_len"}`
    gets it from its context. Progress is written by the engine, through underscored fields.
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
    """Conversation or agent that it belongs to; empty if it stands alone."""
    tenant: str = ""
    """Tenant that owns it, for fairness."""
    slo_class: str = ""
    """Class of service, for goodput."""
    predicted_output_len: int = 0
    """Output tokens according to a predictor with a stated error; set by the workload (0: no prediction)."""
    deadlines: tuple[Deadline, ...] = ()
    """Times at which its client gives up."""
    _stops: bool = False  # engine only: its last token is a stop token, even if it is the last one allowed
    owner: Request | None = None
    """Request whose prompt this one computes on a prefill replica. Its memory there is kept after it finishes until the
    KV has been read (servesim.features.handoff.part)."""
    leg: Request | None = None
    """Request that computes its prompt on another replica, if any."""
    parent: ParentRequest | None = None
    """Parent request, if this is one of several samples (n > 1)."""
    sample: int = 0
    """Sample number. 0: the only one; from 1: one of several; -1: only computes their prompt for the prefix cache."""

    state: State = State.WAITING
    _end_tokens: int = 0  # engine only: num_tokens at its end
    _order: int = LAST  # engine only: its place in the batch among its keeper's requests
    _walk: Any = None  # engine only: its future steps
    _keeper: CounterKeeper | None = None  # its keeper, or None if it keeps its own counters
    _num_tokens: int = field(init=False)
    _num_computed_tokens: int = field(default=0, init=False)
    _num_output_placeholders: int = field(default=0, init=False)
    _last_token_ns: int = field(default=-1, init=False)
    num_draft_tokens: int = 0
    """Drafts attached for verification in the next step."""
    num_preemptions: int = 0

    replica: int = -1
    """Replica it was last sent to; -1 if none, or if its samples were forked from another request."""

    # History of the request, filled in by the engine; -1 means that the event has not happened.
    scheduled_ns: int = -1
    first_token_ns: int = -1
    finished_ns: int = -1
    hit_tokens: int = 0
    """Number of prefix tokens found in the cache at its first admission."""
    loaded_tokens: int = 0
    """Total number of tokens whose KV was loaded from a remote source."""
    being_read: int = 0
    """Number of planned or running copies of its KV to remote targets; its memory is kept until they are done."""
    recomputed_tokens: int = 0
    """Number of tokens recomputed because a preemption discarded their KV."""
    lost_tokens: int = 0
    """Number of tokens that had been computed when it was preempted, kept until it resumes."""
    num_migrations: int = 0
    """Number of times that it went on at another replica after it had lost one that had sent its first token."""
    reason: str = ""
    """Finish reason (length, stop), or the reason for its rejection or abort."""
    model: str = ""
    """Requested model, if pools serve several; empty for any."""

    def __post_init__(self) -> None:
        self._num_tokens = self.prompt_len

    @property
    def num_tokens(self) -> int:
        """Prompt tokens plus output tokens delivered so far: all tokens visible to the scheduler."""
        if self._keeper is not None:
            self._keeper.settle(self)
        return self._num_tokens

    @num_tokens.setter
    def num_tokens(self, tokens: int) -> None:
        self._num_tokens = tokens

    @property
    def num_computed_tokens(self) -> int:
        """Number of tokens whose KV exists (in host memory, if swapped) or is being computed by a step in flight
        (advanced when scheduled)."""
        if self._keeper is not None:
            self._keeper.settle(self)
        return self._num_computed_tokens

    @num_computed_tokens.setter
    def num_computed_tokens(self, tokens: int) -> None:
        self._num_computed_tokens = tokens

    @property
    def num_output_placeholders(self) -> int:
        """Number of output tokens, drafts included, that steps in flight may still deliver."""
        if self._keeper is not None:
            self._keeper.settle(self)
        return self._num_output_placeholders

    @num_output_placeholders.setter
    def num_output_placeholders(self, tokens: int) -> None:
        self._num_output_placeholders = tokens

    @property
    def last_token_ns(self) -> int:
        """Time of its latest token, or -1 if it has none."""
        if self._keeper is not None:
            self._keeper.settle(self)
        return self._last_token_ns

    @last_token_ns.setter
    def last_token_ns(self, ns: int) -> None:
        self._last_token_ns = ns

    @property
    def num_output_tokens(self) -> int:
        """Number of output tokens delivered so far."""
        if self._keeper is not None:
            self._keeper.settle(self)
        return self._num_tokens - self.prompt_len

    @property
    def num_sequences(self) -> int:
        """Number of sequences it is or will become: several if samples are forked off its prompt."""
        return 1 + self.parent.unforked if self.parent is not None else 1

    def __repr__(self) -> str:
        return (
            f"<{self.name} {self.state.name.lower()} prompt={self.prompt_len} "
            f"computed={self.num_computed_tokens}/{self.num_tokens}>"
        )


@dataclass(slots=True, eq=False)
class ParentRequest:
    """State shared by the samples of one request; each sample is itself a Request."""

    number: int
    """Number of the request, used in all records."""
    members: list[Request] = field(default_factory=list)
    """Samples, first to last."""
    outputs: list[int] = field(default_factory=list)
    """True output lengths of the samples, private to the engine."""
    unforked: int = 0
    """Number of members, at the end of the list, that are created once the prompt of the first has been computed."""
    replica: int = -1
    """Replica that serves it; samples can share a prompt only there."""
    answering: bool = False
    """Whether its samples have been sent after the request that computes their prompt."""
    tokenized: bool = False
    """Whether the front end has tokenized its prompt, which happens once."""
    num_gone: int = 0
    """Number of samples that have left."""
    reason: str = ""
    """Failure reason of the first sample that failed."""

    @property
    def sent(self) -> list[Request]:
        """Samples that are or were with the engine."""
        return self.members[: len(self.members) - self.unforked]

    def leave(self, request: Request) -> bool:
        """Record that a sample (or the request that computes the prompt for all) has left; return whether the whole
        request has left."""
        failed = request.state is not State.FINISHED
        if failed and not self.reason:
            self.reason = request.reason
        if request.sample < 0:
            return failed and not self.answering
        self.num_gone += 1
        return self.num_gone == len(self.sent)

    @property
    def first_token_ns(self) -> int:
        """Time of the first token of any sample, or -1 if there is none yet."""
        return min((r.first_token_ns for r in self.members if r.first_token_ns >= 0), default=-1)
