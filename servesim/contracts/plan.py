"""A scheduler's decision for one step, and the transaction that builds it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mypy_extensions import mypyc_attr

from servesim.contracts.connector import DEFER, Connector, Load
from servesim.contracts.kv import Hit
from servesim.contracts.ledger import Ledger
from servesim.contracts.request import PREEMPTED, RUNNING, Request, State
from servesim.errors import PolicyError

if TYPE_CHECKING:
    from servesim.contracts.kv import KVAllocator


NO_END = 1 << 60
"""A number of steps larger than that of any run."""


def _not_ints(*numbers: Any) -> TypeError:
    """Return the error that a compiled build raises for a number that is not an int."""
    kind = next(type(number) for number in numbers if not isinstance(number, int))
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return TypeError(f"int object expected; got {module}{kind.__qualname__}")


@mypyc_attr(allow_interpreted_subclasses=True)
@dataclass(slots=True, init=False)
class Plan:
    """One step: the tokens that each request computes, and the changes to the queues."""

    step_id: int
    _tokens: dict[Request, int]
    drafts: dict[Request, int]
    """Number of tokens per request that are drafts to verify, included in its new tokens."""
    admitted: list[Request]
    resumed: list[Request]
    preempted: list[Request]
    rejected: list[Request]
    loading: list[Request]
    """Requests that started to wait for remote KV."""
    attention: str
    """"fused": one kernel for the whole batch; "per_request": one launch per request (Orca)."""
    layout: str
    """"mixed": the new tokens of all requests in one flat row. "padded": a rectangle; every request and `padded_rows`
    more rows are computed as if they were `padded_len` long. "recompute": every request is computed again from its
    first token."""
    padded_rows: int
    padded_len: int
    """Tokens of each row once step `padded_at` is done; each step after that adds one."""
    padded_at: int
    """Id of that step, or a negative number for this step."""
    bytes_moved: int
    """Bytes moved over PCIe: KV swapped out or in."""

    def __init__(self, step_id: int) -> None:  # explicit so that mypyc compiles it
        self.step_id, self.padded_at = step_id, -1
        self._tokens, self.drafts = {}, {}
        self.admitted, self.resumed, self.preempted, self.rejected, self.loading = [], [], [], [], []
        self.attention, self.layout = "fused", "mixed"
        self.padded_rows = self.padded_len = self.bytes_moved = 0

    @property
    def tokens(self) -> dict[Request, int]:
        """New tokens per request, drafts included; the insertion order is the batch order."""
        return self._tokens

    @property
    def row_len(self) -> int:
        """Tokens in each row of a padded batch once this step is done."""
        return self.padded_len + (self.step_id - self.padded_at if self.padded_at >= 0 else 0)

    @property
    def changes_queues(self) -> bool:
        """Whether a request entered or left the running set or the queues while this plan was made."""
        return bool(self.admitted or self.resumed or self.preempted or self.rejected or self.loading)


@mypyc_attr(allow_interpreted_subclasses=True)
class PlanContext:
    """The transaction passed to `Scheduler.plan`: verbs that act immediately on allocator and plan together.

    Call them in exactly the order of the real engine; the engine verifies the outcome.
    """

    def __init__(
        self,
        policy: str,
        now: int,
        plan: Plan,
        kv: KVAllocator,
        ledger: Ledger,
        asynchronous: bool = False,
        oracle: bool = False,
        connector: Connector | None = None,
        fetched: dict[Request, Load] | None = None,
    ) -> None:
        self.policy, self._now, self._oracle = policy, now, oracle
        self.kv, self.plan, self._ledger = kv, plan, ledger
        self._asynchronous = asynchronous
        self.connector = connector
        """Source of remote KV; None if there is none."""
        self.fetched: dict[Request, Load] = fetched if fetched is not None else {}
        """Requests that hold memory and do not run: their remote KV is loading or has arrived."""
        self._available: tuple[Request, int, Any] | None = None  # connector's latest answer, and its hit

    @property
    def now(self) -> int:
        """Simulated time in ns."""
        return self._now

    @property
    def step_id(self) -> int:
        """Number of the step being planned, from 0. Use this to count steps, since the scheduler may not be called for
        a plan that cannot differ from the previous one."""
        return self.plan.step_id

    @property
    def num_tokens(self) -> int:
        """Number of tokens in the plan so far, including those from `decode`."""
        return sum(self.plan._tokens.values())

    def decode(
        self,
        running: Sequence[Request],
        most: int,
        *,
        free: int = 0,
        steps: int | None = None,
        overrun: bool = False,
    ) -> Sequence[Request]:
        """Serve the front of `running` in bulk: every request there that needs only its next token gets it, with the
        drafts attached to it, up to `most` tokens in total. Return the rest, for the caller to extend one by one.

        Optional, and never changes the plan: requests served here would get the same from the caller's loop, and in
        reference mode all are returned. Conditions of the caller's loop beyond `due` must therefore be passed here,
        too. `free`: nothing is served unless `free` tokens of memory are free beforehand. `steps`: the plan depends on
        the scheduler's own state, which may change it after N steps, or when a request ends; the scheduler is called
        again then, even if nothing arrives or runs short. `overrun`: a request whose last token by its length cap is
        still in flight gets one more (SGLang), which is discarded.
        """
        return running

    def due(self, request: Request) -> int:
        """Return the number of tokens of a running request that are known, or will be once the steps in flight are
        done, but not computed yet: 1 in decode, 0 if the tokens in flight reach its length cap; no drafts."""
        if request._keeper is not None:
            request._keeper.settle(request)
        computed, known = request._num_computed_tokens, request._num_tokens
        if self._asynchronous:
            coming = request._num_output_placeholders
            if coming > 0 and computed + 2 - coming >= request.prompt_len + request.max_tokens:
                return 0
            known += coming
        return known - computed

    def tokens_left(self, requests: Sequence[Request], most: int) -> int:
        """Return how many tokens these requests may still generate before their length caps, in total, with at most
        `most` counted for each."""
        return sum([min(request.max_tokens - request.num_output_tokens, most) for request in requests])

    def lookup(self, request: Request) -> Hit:
        """Return the longest cached prefix of a request about to be admitted, or its remote KV if that has arrived."""
        if request in self.fetched:
            return Hit(request._num_computed_tokens)
        return self.kv.lookup(request)

    def deferred(self, request: Request, hit: Hit) -> bool:
        """Return whether a waiting request must be retried later: KV that it could use is being transferred for another
        request, whose prefix it will find. The caller continues with the requests behind it."""
        if self.connector is None or request in self.fetched:
            return False
        self._available = None
        return bool(self._ask(request, hit) == DEFER)

    def external(self, request: Request, hit: Hit) -> int:
        """Return the number of tokens of a waiting request, after the hit, whose remote KV the same step that admits it
        can load; pass it to `admit`. The last known token is always computed."""
        connector: Any = self.connector  # as in `_ask`
        if connector is None or request in self.fetched:
            return 0
        tokens = self._ask(request, hit)
        if not connector.in_step:
            return 0
        if type(tokens) is not int or not 0 <= tokens <= request.num_tokens - hit.num_tokens:
            raise _not_there(tokens, request, hit)
        return min(tokens, request.num_tokens - 1 - hit.num_tokens)

    def fetch(
        self, request: Request, hit: Hit, *, full_tokens: int = 0, reserve: int = 0, owed: int = 0
    ) -> bool | None:
        """Make a waiting request wait for remote KV after the hit, if there is any, and allocate its memory. Return
        True if it waits: the caller takes it out of its queue, and gets it back through `Scheduler.on_arrival`. Return
        False (nothing done) if the allocator has no room. Return None if there is no such KV, or it has arrived: the
        request can be admitted. `full_tokens` and `reserve` are as in `admit`; `owed` tokens must be free in addition,
        for requests that have started their prompts. Do not call it for a `deferred` request."""
        connector: Any = self.connector  # as in `_ask`
        kv = self.kv
        if connector is None or request in self.fetched:
            return None
        start, tokens = hit.num_tokens, self._ask(request, hit)
        if connector.in_step:
            return None
        if type(tokens) is not int or not 0 <= tokens <= request.num_tokens - start:
            raise _not_there(tokens, request, hit)
        if not tokens:
            return None
        fits = kv.can_load(request, hit, tokens, full_tokens, reserve)
        if not fits or (owed and not kv.can_load(request, hit, tokens, 0, reserve + owed)):
            return False
        before, request.state = request.state, State.LOADING
        kv.admit(request, hit, tokens, 0)
        request._num_computed_tokens = start
        self._ledger.hold(start)
        end_ns = connector.load(request, start, start + tokens, self._now)
        if type(end_ns) is not int or end_ns < self._now:
            raise PolicyError(f"connector: a transfer that begins at {self._now} ns ends at {end_ns!r} ns")
        self.fetched[request] = Load(start, start + tokens, end_ns, before)
        self.plan.loading.append(request)
        if before is not State.PREEMPTED:
            request.hit_tokens = start
        return True

    def _ask(self, request: Request, hit: Hit) -> Any:
        """Return the connector's answer for a waiting request, which this plan may have already."""
        connector: Any = self.connector  # Any: mypyc would raise for non-ints before they can be refused
        asked = self._available
        if asked is not None and asked[0] is request and asked[1] == hit.num_tokens:
            return asked[2]
        tokens = connector.available(request, hit.num_tokens)
        self._available = (request, hit.num_tokens, tokens)
        return tokens

    def admit(
        self,
        request: Request,
        num_tokens: int,
        hit: Hit | None = None,
        *,
        full_tokens: int = 0,
        reserve: int = 0,
        lookahead: int = 0,
        drafts: int = 0,
        external: int = 0,
    ) -> bool:
        """Give a waiting request memory and `num_tokens` tokens in this step. Return False (and do nothing) if the
        allocator has no room. `hit` is the result of `kv.lookup`: those tokens need no computing, nor do the `external`
        ones after them, which the step loads. `full_tokens` must fit in addition to the hit although only `num_tokens`
        are allocated; `reserve` tokens stay free. The caller moves the request from waiting to running."""
        if type(num_tokens + full_tokens + reserve + lookahead + drafts + external) is not int:
            raise _not_ints(num_tokens, full_tokens, reserve, lookahead, drafts, external)
        hit = hit if hit is not None else self.lookup(request)
        come, here = request in self.fetched, hit.num_tokens + external
        if come:
            if not self._grow_fetched(request, num_tokens, full_tokens, reserve, lookahead):
                return False
        elif not self.kv.can_admit(request, hit, external + num_tokens + lookahead, full_tokens, reserve):
            return False
        else:
            self.kv.admit(request, hit, external + num_tokens, lookahead)
            self._ledger.hold(here)
        again = request.state is PREEMPTED
        request.state = RUNNING
        request._num_computed_tokens = here
        if external and self.connector is not None:
            self.connector.load(request, hit.num_tokens, here, self._now)
            request.loaded_tokens += external
        if again:
            request.recomputed_tokens += max(request.lost_tokens - here, 0)
            request.lost_tokens = 0
            self.plan.resumed.append(request)
        else:
            request.hit_tokens = request.hit_tokens if come else hit.num_tokens
            request.scheduled_ns = self._now
            self.plan.admitted.append(request)
        self.plan._tokens[request] = num_tokens  # `schedule`, written out to save each admission a call
        if drafts:
            self.plan.drafts[request] = drafts
        return True

    def _grow_fetched(self, request: Request, num_tokens: int, full_tokens: int, reserve: int, lookahead: int) -> bool:
        """Give a request whose KV has arrived the rest of its memory for admission. Return False if out of memory."""
        kv, size = self.kv, self.kv.block_size
        end = min(max(full_tokens, request._num_computed_tokens + num_tokens + lookahead), kv.max_model_len)
        short = -(-(end - kv.slots(request)) // size) * size
        if (short > 0 and short + reserve > kv.usage().free) or not kv.grow(request, num_tokens, lookahead):
            return False
        del self.fetched[request]
        return True

    def extend(self, request: Request, num_tokens: int, *, lookahead: int = 0, drafts: int = 0) -> bool:
        """Give a running request `num_tokens` tokens in this step. Return False (nothing done) if out of memory."""
        if type(num_tokens + lookahead + drafts) is not int:
            raise _not_ints(num_tokens, lookahead, drafts)
        if not self.kv.grow(request, num_tokens, lookahead):
            return False
        self.plan._tokens[request] = num_tokens
        if drafts:
            self.plan.drafts[request] = drafts
        return True

    def schedule(self, request: Request, num_tokens: int, drafts: int = 0) -> None:
        """Add a request that already has its memory to the plan."""
        self.plan._tokens[request] = num_tokens
        if drafts:
            self.plan.drafts[request] = drafts

    def unschedule(self, request: Request) -> int:
        """Remove a request from this plan; return the tokens it had (0 if none)."""
        self.plan.drafts.pop(request, None)
        return self.plan._tokens.pop(request, 0)

    def preempt(self, request: Request) -> None:
        """Free everything a running request holds; when resumed, it recomputes from its first uncached token. The
        caller removes it from its running list and queues it again."""
        self._stop(request)
        request.state = State.PREEMPTED
        self.kv.free(request)
        request.lost_tokens = request._num_computed_tokens
        request._num_computed_tokens = 0

    def swap_out(self, request: Request, samples: Sequence[Request] = ()) -> bool:
        """Preempt a running request, and running samples forked from it, by moving their KV to host memory. Return
        False (nothing done) if there is no room. The caller moves them together from its running list to a queue of
        requests to swap in."""
        if not self.kv.can_swap_out(request, samples):
            return False
        for each in (request, *samples):
            self._stop(each)
            each.state = State.SWAPPED
        self._move(self.kv.swap_out(request, samples))
        return True

    def swap_in(
        self,
        request: Request,
        num_tokens: int,
        *,
        samples: Sequence[Request] = (),
        reserve: int = 0,
        lookahead: int = 0,
        drafts: int = 0,
    ) -> bool:
        """Swap in a request, with the samples that were swapped out with it, and give each `num_tokens` tokens in this
        step. Return False (nothing done) if their KV and those tokens do not fit with `reserve` tokens left free. The
        caller moves them to its running list."""
        if request.state is not State.SWAPPED:
            raise PolicyError(f"{self.policy} at {self._now} ns: swaps in {request}, which is not swapped out")
        if type(num_tokens + reserve + lookahead + drafts) is not int:
            raise _not_ints(num_tokens, reserve, lookahead, drafts)
        if not self.kv.can_swap_in(request, num_tokens + lookahead, reserve, samples):
            return False
        self._move(self.kv.swap_in(request, num_tokens, lookahead, samples))
        for each in (request, *samples):
            each.state = State.RUNNING
            self._ledger.hold(each._num_computed_tokens)
            self.plan.resumed.append(each)
            self.schedule(each, num_tokens, drafts)
        return True

    def _stop(self, request: Request) -> None:
        if request.state is not State.RUNNING:
            raise PolicyError(f"{self.policy} at {self._now} ns: preempts {request}, which is not running")
        self._ledger.release(request._num_computed_tokens)
        request.num_draft_tokens = 0
        request.num_preemptions += 1
        self.plan.preempted.append(request)

    def _move(self, num_tokens: int) -> None:
        self.plan.bytes_moved += num_tokens * self.kv.memory.bytes_per_token

    def reject(self, request: Request, reason: str) -> None:
        """Reject a waiting request permanently; the caller drops it from its queue."""
        request.reason = reason
        self.plan.rejected.append(request)

    def output_len(self, request: Request) -> int:
        """Return the true output length, for schedulers that declare `needs = {"output_len"}`."""
        if not self._oracle:
            raise PolicyError(f"{self.policy}: asks for the true output length without declaring it in `needs`")
        return request._end_tokens - request.prompt_len


def _not_there(tokens: Any, request: Request, hit: Hit) -> PolicyError:
    return PolicyError(
        f"connector: {tokens!r} tokens of {request} are available elsewhere, after {hit.num_tokens} that are local"
    )
