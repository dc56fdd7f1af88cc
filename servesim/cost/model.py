"""Price of a step: linear layers once over all its tokens, attention by layer type, sampling by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from servesim.contracts.cost import NO_HOST, Batch, CostModel, Host, Price, RunSources, Times
from servesim.cost.context_pricing import OverContexts
from servesim.cost.curve import Curve, rounded, whole
from servesim.cost.data_parallel import Mixture
from servesim.cost.draft import Drafting
from servesim.cost.host import HostTerms
from servesim.cost.sources import CurveSources, SumSources
from servesim.cost.stage import Priced, Stage
from servesim.cost.tables import KernelTables
from servesim.engine.fast.cost import Run, plain_run

DecodeTerms = tuple[float, list[float], list[int], int, Curve, int, int, int]
"""Terms of a decode batch that depend only on the number of sequences: nanoseconds of everything except attention, the
same by source, both as whole numbers (`whole`), attention as a function of the contexts, host time, the minimum time of
a step, and the host's additions to that minimum and to GPU time."""


class TableCostModel(CostModel):
    """Prices from kernel tables; build it with `build_cost_model`.

    Operators are curves, already multiplied by the number of times that a step runs them, as functions of the tokens of
    the step (padding included) or of the rows that sample. Attention of a mixed step is one kernel, so its fixed cost
    is paid once. Decode depends on the sum of the contexts, and on their spread only where that was measured. Copies
    over PCIe are not overlapped with the step. With `host` terms, small batches are padded to CUDA-graph sizes, and
    computing for longer than the clock can be sustained is slower. Under pipeline parallelism a step passes through the
    stages one after the other.

    The price of a step is the sum over its passes, each rounded separately. `price` returns it, `stages` splits it by
    pipeline stage, and `prices` covers data-parallel ranks, which share the work of experts. Fast mode would spend most
    of its time pricing steps one by one, so three methods price many at once, equal to `price` to the nanosecond:
    `gpu_run` prices the next k steps of a batch; `decode_run` prices decode steps without drafts on a single stage,
    from terms kept by number of sequences; `over_contexts` prices steps with drafts, whose contexts grow by the
    number of accepted tokens.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        description: str = "",
        host: HostTerms | None = None,
        tables: KernelTables | None = None,
        suspect: Sequence[str] = (),
        drafting: Drafting | None = None,
        mixtures: Sequence[Mixture] = (),
    ) -> None:
        self.description = description
        self.terms = host
        self.tables = tables
        self.suspect = list(suspect)
        """Measurements used for pricing that cannot be right, each described in one line."""
        self._stages = stages
        self._drafting = drafting
        self._mixtures = mixtures
        """Joint work of the data-parallel ranks, by stage; empty without ranks."""
        self.num_stages = len(stages)
        self._plain = len(stages) == 1 and drafting is None  # a step is one pass of one stage
        self._hosts: dict[tuple[int, int, bool], Host] = {}  # by sequences, samples and prompts: its only inputs
        self._over: dict[tuple[int | str, ...], OverContexts | None] = {}  # keyed by all inputs except contexts
        self._decodes: dict[tuple[int, str], DecodeTerms] = {}
        self._padded = host.padding() if host is not None else []

    def extrapolated(self, reach: Mapping[int, int]) -> list[str]:
        """Return the operators of priced steps that were outside the tables, one line each. `reach`: the largest sum of
        contexts actually reached, by number of decoding sequences (whole runs of steps are priced, but not all of their
        steps are used)."""
        found: dict[str, str] = {}
        for stage in self._all_stages():
            found = {**stage.extrapolated(reach), **found}
        return [f"{name}: {found[name]}" for name in sorted(found)]

    def priced(self) -> list[Priced]:
        """Return the extremes of the steps priced so far, per stage, for `add_priced` of another process's model."""
        return [stage.priced() for stage in self._all_stages()]

    def add_priced(self, other: Sequence[Priced]) -> None:
        """Also count the steps priced by an equal model in another process."""
        for stage, priced in zip(self._all_stages(), other, strict=True):
            stage.add_priced(priced)

    def _all_stages(self) -> tuple[Stage, ...]:
        drafting = self._drafting
        mixtures = [*self._mixtures, *((drafting.mixture,) if drafting is not None and drafting.mixture else ())]
        shared = dict.fromkeys(stage for mixture in mixtures for stage in mixture)
        return (*self._stages, *shared, *(drafting.stages if drafting is not None else ()))

    def stages(self, batch: Batch) -> tuple[int, ...]:
        """Return the GPU ns of a step on each pipeline stage, including the transfer to the next stage; they sum to the
        step's `gpu_ns`."""
        times = [stage.cost(passed, self._tokens(passed))[0] for stage, passed in self._passes(batch)]
        last = self.num_stages - 1  # it drafts, too
        return (*times[:last], sum(times[last:]))

    def computing_ns(self, batch: Batch) -> float:
        """Return the GPU ns of a step without decode attention, i.e. the duration of the computing that lowers the
        clock if it lasts long."""
        tokens = self._tokens(batch)
        return sum(stage.constant(batch, tokens)[0] for stage in self._stages)

    def throttling_ns(self, batch: Batch) -> float:
        """Return the extra GPU ns of a step if all of it ran at the clock that the power limit sustains."""
        tokens = self._tokens(batch)
        return sum(stage.throttling_ns(tokens) for stage in self._stages)

    def gpu_run(self, batch: Batch, k: int) -> NDArray[np.int64]:
        """Return the GPU ns of successive steps; see the contract."""
        times = np.zeros(k, np.int64)
        for stage, passed in self._passes(batch):
            times += stage.run(passed, self._tokens(passed), k)
        return times

    def over_contexts(self, batch: Batch) -> OverContexts | None:
        """Return the price of steps like `batch` as a function of the sum of their contexts, or None if it depends on
        more than that sum."""
        if batch.prefill or batch.bytes_moved or batch.bytes_copied:
            return None
        if batch.sampled_context != batch.decode_context_sum:
            return None  # drafts verified as separate sequences: their shift varies by step
        key = (
            batch.linear_tokens,
            batch.padded_tokens,
            batch.decode_count,
            batch.queries_per_sequence,
            batch.sampled,
            batch.attention,
            batch.drafts,
            batch.draft_k,
        )
        if key not in self._over:
            passes = self._passes(batch)
            context = batch.decode_context_sum
            found = [stage.over_contexts(passed, self._tokens(passed), context) for stage, passed in passes]
            known = [each for each in found if each is not None]
            follows = self._drafting is None or self._drafting.speculator.follows()
            whole = follows and len(known) == len(found)
            self._over[key] = OverContexts(known, self._host(batch)) if whole else None
        return self._over[key]

    def host(self, batch: Batch) -> Host:
        """Return the GPU ns of successive steps; see the contract."""
        if self._drafting is None:
            return self._engine_host(batch)
        over = self.over_contexts(batch)
        return over.host if over is not None else self._host(batch)

    def _host(self, batch: Batch) -> Host:
        """Return the host time, that of drafting included."""
        host = self._engine_host(batch)
        if self._drafting is not None:
            drafting = self._drafting.speculator.host_ns(batch, batch.draft_k)
            if drafting:
                host = host._replace(exposed=host.exposed + drafting)
        return host

    def _engine_host(self, batch: Batch) -> Host:
        """Return the host time without that of drafting, kept by its only inputs unless kernels are launched one by
        one."""
        if self.terms is None:
            return NO_HOST
        key = (batch.decode_count + len(batch.prefill), batch.sampled, bool(batch.prefill))
        kept = self._hosts.get(key)
        if kept is not None:
            return kept
        host = self.terms.host(batch)
        if self.terms.launch_per_kernel:
            kernels = sum(stage.launches(passed.sampled > 0) for stage, passed in self._passes(batch))
            kernels += sum(mixture.decoding.launches(False) for mixture in self._mixtures)
            host = host._replace(launching=int(kernels * self.terms.launch_per_kernel + 0.5))
        if batch.prefill:
            eager = sum(self.terms.eager_ns(stage.layers, stage.mixtures) for stage in self._stages)
            host = host._replace(launching=max(host.launching, int(eager + 0.5)))
        if not self.terms.launch_per_kernel:
            self._hosts[key] = host
        return host

    def price(self, batch: Batch) -> Price:
        """Return the price of one step."""
        if self._plain:
            gpu, (a, b, c, d) = self._stages[0].cost(batch, self._tokens(batch))
            host = self._engine_host(batch)
            return Price(self.step_ns(gpu, host), gpu, host, (a, b, c, d))
        over = self.over_contexts(batch) if self._drafting is not None else None
        if over is not None:
            gpu, of_source = over.one(batch.decode_context_sum)
            return Price(self.step_ns(gpu, over.host), gpu, over.host, of_source)
        gpu = a = b = c = d = 0
        for stage, passed in self._passes(batch):
            ns, (p, q, r, s) = stage.cost(passed, self._tokens(passed))
            gpu, a, b, c, d = gpu + ns, a + p, b + q, c + r, d + s
        host = self.host(batch)
        return Price(self.step_ns(gpu, host), gpu, host, (a, b, c, d))

    def prices(self, batches: Sequence[Batch | None]) -> list[Price]:
        """Return the prices of one step of data-parallel ranks. A rank without work takes part with one sequence, which
        has as many drafts as others. If all ranks decode, they run CUDA graphs of one size, that of the fullest rank,
        because all three engines pad them; if any rank has a prompt, ranks compute only their own tokens."""
        alone = [self.price(batch if batch is not None else self._dummy()) for batch in batches]
        if not self._mixtures:
            return alone
        ns = a = b = c = d = 0
        for more, (p, q, r, s) in self.together(batches):
            ns, a, b, c, d = ns + more, a + p, b + q, c + r, d + s
        found = []
        for price in alone:
            gpu, (p, q, r, s) = price.gpu_ns + ns, price.sources
            found.append(Price(self.step_ns(gpu, price.host), gpu, price.host, (a + p, b + q, c + r, d + s)))
        return found

    def rank_stages(self, batches: Sequence[Batch | None]) -> list[tuple[int, ...]]:
        """Return the GPU ns of each rank on each stage; see the contract."""
        ranks = [batch if batch is not None else self._dummy() for batch in batches]
        last = self.num_stages - 1  # which drafts, too
        joint = [ns for ns, _ in self.together(batches)]
        shared = [*joint[:last], sum(joint[last:])]
        return [tuple(own + more for own, more in zip(self.stages(batch), shared, strict=True)) for batch in ranks]

    def _dummy(self) -> Batch:
        """Return the step of a rank without work, which samples nothing (vLLM 0.33, v1/worker/gpu_worker.py,
        execute_dummy_batch; SGLang 0.5.23, idle batches): a sequence with as many drafts as the method makes."""
        speculator = self._drafting.speculator if self._drafting is not None else None
        k = speculator.max_drafts if speculator is not None else 0
        drafts = speculator.verified(k) if speculator is not None else 0
        n = 1 + drafts
        return Batch(
            n,
            decode_count=1,
            decode_context_sum=n,
            decode_context_sumsq=n * n,
            decode_context_max=n,
            queries_per_sequence=n,
            drafts=drafts,
            draft_k=k,
        )

    def together(self, batches: Sequence[Batch | None]) -> list[tuple[int, list[int]]]:
        """Return the ns, and those by source, of the experts' work on the tokens of all ranks: in each stage of the
        target's pass, and in each pass of a draft model that has experts. See `JointCost`."""
        ranks = [batch if batch is not None else self._dummy() for batch in batches]
        drafting, count = self._drafting, len(ranks)
        prompts = any(batch.prefill for batch in ranks)
        tokens = [self._tokens(batch) for batch in ranks]
        joint = [(mixture, prompts, sum(tokens) if prompts else max(tokens) * count) for mixture in self._mixtures]
        if drafting is not None and drafting.mixture is not None:
            passes = [drafting.speculator.passes(batch, batch.draft_k) for batch in ranks]
            for i in range(max(map(len, passes))):
                tokens = [max(self._tokens(own[i]), 1) if i < len(own) else 1 for own in passes]
                mixed = prompts and i == 0
                joint.append((drafting.mixture, mixed, sum(tokens) if mixed else max(tokens) * count))
        return [
            (mixture.prompts if mixed else mixture.decoding).cost(Batch(of_all), of_all)
            for mixture, mixed, of_all in joint
        ]

    def decode_run(self, batch: Batch, most: int, until_ns: int) -> Run:
        """Return a decode run; see `RunCost.decode_run`."""
        if not self._plain or batch.padded_tokens:
            gpu_ns, ns_each, host_sum, _ = plain_run(self, batch, most, until_ns)
            return gpu_ns, ns_each, host_sum, self._run_sources(batch, len(gpu_ns))
        key = (batch.decode_count, batch.attention)
        terms = self._decodes.get(key)
        if terms is None:
            terms = self._decodes[key] = self._decode_terms(batch)
        base, parts, fixed, known, curve, host_ns, least, more = terms
        stage, contexts = self._stages[0], batch.decode_context_sum
        if stage.skewed:
            beyond, origin = stage.skew(batch)
            base += beyond
            parts = parts.copy()
            parts[origin] += beyond
            fixed, known = whole(base, parts)
        start, y, slope, source, until = curve.piece(contexts)
        first = rounded(base, y, (contexts - start) * slope)
        ns = (first if first > least else least) + more
        if most > 1:
            within = until_ns // (ns if ns > 1 else 1) + 1
            if within < most:
                most = within
        gpu: Times = [first] if most == 1 else curve.rounded_times(base, contexts, batch.decode_count, most)
        sources = CurveSources(fixed, known, curve, contexts, batch.decode_count, gpu, source, until)
        if most == 1:
            return gpu, [ns], host_ns, sources
        if isinstance(gpu, list):
            covered = gpu if min(gpu) >= least else [g if g > least else least for g in gpu]
            return gpu, [g + more for g in covered], host_ns, sources
        return gpu, np.maximum(gpu, least) + more, host_ns, sources

    def _run_sources(self, batch: Batch, k: int) -> RunSources:
        """Return the sources of k successive steps, summed over all their passes."""
        found: list[RunSources] = []
        for stage, passed in self._passes(batch):
            tokens = self._tokens(passed)
            found.append(stage.run_sources(passed, tokens, stage.run(passed, tokens, k)))
        return SumSources(found)

    def _decode_terms(self, batch: Batch) -> DecodeTerms:
        """Return the terms of a decode batch."""
        stage, host = self._stages[0], self.host(batch)
        ns, parts = stage.constant(batch, self._tokens(batch))
        if self.asynchronous:
            least, more = max(host.launching, host.overlapped), host.exposed
        else:
            least, more = host.launching, host.overlapped + host.exposed
        return ns, parts, *whole(ns, parts), stage.decode_curve(batch), sum(host), least, more

    def shares(self, batch: Batch) -> tuple[float, float, float, float]:
        """Return the fractions of the GPU time by source (slowdown under load is not included)."""
        return self.price(batch).shares

    def _passes(self, batch: Batch) -> list[tuple[Stage, Batch]]:
        """Return all passes of a step, each rounded separately: the stages, and those of a draft model."""
        drafts = self._drafting.work(batch) if self._drafting is not None else []
        return [*zip(self._stages, repeat(batch)), *drafts]

    def _tokens(self, batch: Batch) -> int:
        """Return the number of tokens that go through the linear layers."""
        tokens = batch.linear_tokens + batch.padded_tokens
        return self._padded[tokens] if tokens < len(self._padded) else tokens
