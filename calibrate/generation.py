"""Text generation by a real model on a processor, step by step, beside the prices of the same steps.

The model has random weights: times do not depend on them. What depends on them, which drafts are accepted, is given.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from servesim.calibrate.engines import EngineStep, Piece, fit_step_host
from servesim.calibrate.journal import SHEET
from servesim.calibrate.kernels import open_kernels
from servesim.calibrate.kernels.torch_ops import TorchOps
from servesim.calibrate.points import Shard
from servesim.calibrate.timing import open_device
from servesim.calibrate.whole_model import WholeModel
from servesim.contracts.cost import Batch
from servesim.cost import build_cost_model
from servesim.cost.host import HostTerms
from servesim.cost.model import TableCostModel
from servesim.hardware import Gpu, ModelSpec


@dataclass(frozen=True)
class Turn:
    """One step of `sequences` alike sequences."""

    new: int
    """New tokens of each sequence."""
    past: int
    """Its tokens in the KV cache."""
    sequences: int = 1
    drafts: int = 0
    """Tokens among the new ones that are drafts: each needs logits of its own."""

    @property
    def pieces(self) -> list[tuple[int, int]]:
        """Tuples (new, past) for every sequence."""
        return [(self.new, self.past)] * self.sequences

    def batch(self) -> Batch:
        """Return the batch that the cost model prices."""
        n, context = self.sequences, self.past + self.new
        if not self.past or self.new > 1 + self.drafts:
            return Batch(n * self.new, self.pieces, sampled=n)
        return Batch(
            n * self.new,
            decode_count=n,
            decode_context_sum=n * context,
            decode_context_sumsq=n * context**2,
            decode_context_max=context,
            queries_per_sequence=self.new,
            sampled=n,
            drafts=n * self.drafts,
        )


def without_cache(prompt: int, output: int) -> list[Turn]:
    """Return the steps of an answer, each of which computes the whole text once more."""
    return [Turn(prompt + i, 0) for i in range(output)]


def with_cache(prompt: int, output: int, sequences: int = 1) -> list[Turn]:
    """Return the steps of as many answers at once: the prompts, then one token after the other."""
    return [Turn(prompt, 0, sequences), *(Turn(1, prompt + i, sequences) for i in range(output - 1))]


def with_drafts(prompt: int, output: int, k: int, accepted: Sequence[int]) -> tuple[list[Turn], list[Turn]]:
    """Return the steps of the target and of the draft model. `accepted` has the number of drafts accepted in each
    round; the target adds a token of its own to them."""
    target, draft, there = [Turn(prompt, 0)], [Turn(prompt, 0)], 1
    for count in accepted:
        if there >= output:
            break
        context = prompt + there - 1
        draft += [Turn(1, context + i) for i in range(k)]
        target.append(Turn(1 + k, context, drafts=k))
        there += 1 + count
    if there < output:
        raise ValueError(f"{len(accepted)} rounds give {there} of {output} tokens")
    return target, draft


class Bench:
    """Model that runs on one thread of this processor, and the cost model of a profile of it."""

    def __init__(self, model: str, tables: str | Path, tokens: int = 4096) -> None:
        """Make the model, with a KV cache of `tokens`, and fit its host terms to a few answers."""
        device = open_device("cpu")
        self._ops = cast(TorchOps, open_kernels(device, None, "fp32", []))
        self._spec, self._tables = ModelSpec.load(model), Path(tables)
        self._model = WholeModel(self._ops, Shard(self._spec, 1, "fp32"), tokens)
        self._gpu = Gpu.load(str(self._tables / SHEET))
        self._cost = self._priced_with(None)
        warm = [*with_cache(24, 12), *with_cache(24, 12, 4)]
        self._run(warm)
        steps = [
            EngineStep(0.0, took, tuple(Piece(new, past, True) for new, past in turn.pieces))
            for turn, took in zip(warm, self._run(warm), strict=True)
        ]
        self.host = fit_step_host(steps, self._cost, "a loop in Python")
        self._cost = self._priced_with(self.host)

    def _priced_with(self, host: HostTerms | None) -> TableCostModel:
        cost: TableCostModel = build_cost_model(
            self._spec, self._gpu, dtype="fp32", kv_dtype="fp32", tables=self._tables, host=host or HostTerms(engine="")
        )
        return cost

    def measured_s(self, turns: Sequence[Turn]) -> float:
        """Run the steps; return their processor time in seconds, which other programs do not add to."""
        return sum(self._run(turns))

    def priced_s(self, turns: Sequence[Turn]) -> float:
        """Return what the steps take by the cost model, in seconds."""
        return float(sum(self._cost.price(turn.batch()).ns for turn in turns)) / 1e9

    def _run(self, turns: Sequence[Turn]) -> list[float]:
        """Run the steps; return the seconds of each."""
        found = []
        with self._ops.torch.no_grad():
            for turn in turns:
                began = time.process_time()
                prepared = self._model.prepare(turn.pieces)
                if turn.drafts:
                    prepared.last = self._ops.torch.arange(prepared.batch.tokens)
                self._model.step(prepared)
                found.append(time.process_time() - began)
        return found
