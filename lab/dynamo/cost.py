"""Step clock of Dynamo's simulated engine (ai-dynamo-runtime 1.6.1, "mocker"): a prompt term plus a decode term.

It serves to compare schedulers and routers with that simulator; no GPU was measured for it. Its rules were found by
replaying recorded runs and by running the wheel and this class on the same random traces.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servesim.contracts.cost import Batch, CostModel
from servesim.errors import UserError

Floats = NDArray[np.float64]
NS_PER_MS = 1_000_000


@dataclass(frozen=True)
class Polynomial:
    """Default times of the simulator, in ms."""

    def prefill_ms(self, tokens: int) -> float:
        """Return the time of a step's prompt tokens."""
        return 4.209989e-07 * tokens * tokens + 1.518344e-02 * tokens + 1.650142e01

    def decode_ms(self, share: Floats) -> Floats:
        """Return the times of decodes whose contexts fill this share of the KV memory (at most 1)."""
        return np.maximum(-25.74 * share * share + 54.01 * share + 5.74, 1.0)


@dataclass(frozen=True)
class Fixed:
    """Constant time for any prompts, and constant time for any decodes, in ms."""

    prefill: float
    decode: float

    def __post_init__(self) -> None:
        for name, ms in (("prefill_ms", self.prefill), ("decode_ms", self.decode)):
            if not 0 <= ms < float("inf"):
                raise ValueError(f"{name} is {ms} but must be at least 0 and finite")

    def prefill_ms(self, tokens: int) -> float:
        """Return the time of a step's prompt tokens."""
        return self.prefill

    def decode_ms(self, share: Floats) -> Floats:
        """Return the times of decodes."""
        return np.full(len(share), self.decode)


def timing_of(model: Mapping[str, Any]) -> Polynomial | Fixed:
    """Return the times for an engine's `timing_model`; raise UserError if it is not one of these."""
    kind = model.get("type")
    if kind == "polynomial" and len(model) == 1:
        return Polynomial()
    if kind == "fixed" and model.keys() == {"type", "prefill_ms", "decode_ms"}:
        try:
            return Fixed(float(model["prefill_ms"]), float(model["decode_ms"]))
        except (TypeError, ValueError) as error:
            raise UserError(f"timing_model: {error}") from None
    raise UserError(
        f'timing_model is {dict(model)} but must be {{"type": "polynomial"}} or fixed with prefill_ms, decode_ms'
    )


class MockerCost(CostModel):
    """Cost model of the simulator: the times of the prompts and of the decodes in a step are added.

    The prompts' tokens are counted as (mean end - mean start) x number, with each mean rounded down to an integer. The
    decodes' contexts are summed over requests, including shared blocks. `kv_tokens` is the number of tokens in KV
    memory.

    If steps mix both (vLLM), a request that recomputes its lost tokens pays for the tokens of its prompt and, as a
    decode, for its context, but not for the tokens it had generated. If a batch is either one or the other (`separate`:
    SGLang), all recomputed tokens count as prompts. On a decode worker (`decodes`), no prompt costs anything: the last
    token of a transferred one is decoded, and one that was preempted is computed again in no time.
    """

    def __init__(
        self, timing: Polynomial | Fixed, kv_tokens: int, separate: bool = False, decodes: bool = False
    ) -> None:
        self.timing = timing
        self.kv_tokens = kv_tokens
        self.separate = separate
        self.decodes = decodes

    def gpu_run(self, batch: Batch, k: int) -> NDArray[np.int64]:
        count, tokens, decodes, context = self._parts(batch)
        ms = np.zeros(k)
        if decodes:
            contexts = context + decodes * np.arange(k)
            ms += self.timing.decode_ms(np.minimum(contexts / self.kv_tokens, 1.0))
        if count:
            ms += self.timing.prefill_ms(tokens)
        return np.maximum((ms * NS_PER_MS + 0.5).astype(np.int64), 1)  # generated tokens only: an instant

    def _parts(self, batch: Batch) -> tuple[int, int, int, int]:
        """Return the number of prompts, their tokens, the number of decodes and their contexts."""
        count = end = start = 0
        decodes, context = batch.sampled, batch.sampled_context
        for new, past, prompt_len, known in () if self.decodes else batch.prompts:
            stop = past + new if self.separate else min(past + new, prompt_len)
            if stop > past:
                count, end, start = count + 1, end + stop, start + past
            if past + new == known and (self.separate or known == prompt_len):  # the prompt has its token
                decodes, context = decodes - 1, context - known
        tokens = (end // count - start // count) * count if count else 0
        return count, tokens, decodes, context
