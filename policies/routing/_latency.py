"""Predictors of a request's time to first token (TTFT) and time per output token (TPOT) at each replica.

`Learned` follows llm-d-latency-predictor (src/llm_d_latency_predictor/training_server.py at 147d369a), whose models are
trained from finished requests by features of the request and of its replica. It has the same features, the same strata
of recent samples (5 of the queue x 20 of KV usage x 4 of the known prefix) and the same constant of 10 ms before the
first training. The model is linear, as with LATENCY_MODEL_TYPE=bayesian_ridge, and its penalty is a parameter instead
of estimated; the default there is XGBoost, by quantiles. `Oracle` asks the scenario's own cost model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from servesim.contracts.profile import Profile
from servesim.contracts.router import ReplicaView

UNTRAINED_S = 0.010
"""Both predictions before the first training, in seconds."""
QUEUES = (0, 2, 5, 10)
"""Largest number of waiting requests of each stratum but the last."""
CACHES, PREFIXES = 20, 4
"""Strata of KV usage and of the known share of the prompt."""
CONSTANT = 1e-12
"""Variance of a feature, relative to its mean square, below which it is constant."""


class Seen(NamedTuple):
    """A request and a replica as the router sees them when it decides."""

    prompt_len: int
    share: float
    """Share of the prompt that the replica is known to have."""
    kv_usage: float
    num_waiting: int
    num_requests: int
    """Number of requests in flight there, by the router's own count."""
    tokens: int
    """Prompt tokens of these requests."""
    backlog: int
    """Prompt tokens there that are still to be computed, by the router's own count."""
    num_prompts: int
    """Number of requests they belong to."""

    @property
    def stratum(self) -> tuple[int, int, int]:
        """Stratum of training samples."""
        queue = next((i for i, most in enumerate(QUEUES) if self.num_waiting <= most), len(QUEUES))
        return queue, min(int(self.kv_usage * CACHES), CACHES - 1), min(int(self.share * PREFIXES), PREFIXES - 1)

    def of_ttft(self) -> tuple[float, ...]:
        """Return the features of the time to first token."""
        return (*self.of_tpot(), self.share, (1 - self.share) * self.prompt_len)

    def of_tpot(self) -> tuple[float, ...]:
        """Return the features of the time per output token."""
        queued = float(self.num_waiting > 0)
        return (queued, self.kv_usage, self.prompt_len, self.num_waiting, self.num_requests, self.tokens)


class Ridge:
    """Ridge regression on standardized features, over the latest samples of each stratum."""

    def __init__(self, penalty: float, most: int, margin: float) -> None:
        self._penalty, self._most, self._margin = penalty, most, margin
        self._samples: dict[tuple[int, int, int], tuple[NDArray[np.float64], int]] = {}  # rows, number of all so far
        self.num_samples = 0
        self.coefficients: tuple[float, ...] = ()
        """Coefficient of each feature, once it has been trained."""
        self.intercept = UNTRAINED_S

    def add(self, stratum: tuple[int, int, int], features: Sequence[float], value: float) -> None:
        """Add a sample; it replaces the oldest of its stratum if that is full."""
        rows, count = self._samples.get(stratum, (None, 0))
        if rows is None:
            rows = np.empty((self._most, len(features) + 1))
        rows[count % self._most] = (*features, value)
        self.num_samples += count < self._most
        self._samples[stratum] = rows, count + 1

    def train(self) -> None:
        """Fit the model to the samples."""
        rows = np.concatenate([rows[:count] for rows, count in self._samples.values()])
        x, y = rows[:, :-1], rows[:, -1]
        mean, scale = x.mean(axis=0), x.std(axis=0)
        constant = scale**2 <= CONSTANT * (x**2).mean(axis=0)
        scale[constant] = 1.0
        z = (x - mean) / scale
        z[:, constant] = 0.0
        # einsum adds up in one order, however many threads there are
        gram = np.einsum("ki,kj->ij", z, z) + self._penalty * np.eye(x.shape[1])
        coefficients = np.linalg.solve(gram, np.einsum("ki,k->i", z, y - y.mean())) / scale
        self.coefficients = tuple(coefficients.tolist())
        error = y - y.mean() - np.einsum("ki,i->k", x - mean, coefficients)
        self.intercept = float(y.mean() - (mean * coefficients).sum() + self._margin * error.std())

    def predict(self, features: Sequence[float]) -> float:
        """Return the prediction for a sample."""
        found = self.intercept
        for coefficient, value in zip(self.coefficients, features, strict=False):  # untrained: no coefficients
            found += coefficient * value
        return found if found > 0 else 0.0


class Learned:
    """Predictor that learns from what the router hears of requests."""

    def __init__(self, params: Any) -> None:
        self._params = params
        self.ttft, self.tpot = (Ridge(params.ridge, params.bucket_size, params.margin) for _ in range(2))
        self._trained_ns = 0

    def at(self, now_ns: int) -> None:
        """Train the models if it is time and there are enough samples."""
        least = self._params.min_samples
        due = now_ns - self._trained_ns >= self._params.retrain_s * 1e9
        if due and self.ttft.num_samples + self.tpot.num_samples >= least:
            self._trained_ns = now_ns
            for model in (self.ttft, self.tpot):
                if model.num_samples >= least:
                    model.train()

    def predict(self, seen: Seen, view: ReplicaView) -> tuple[float, float]:
        """Return TTFT and TPOT in seconds."""
        return self.ttft.predict(seen.of_ttft()), self.tpot.predict(seen.of_tpot())

    def first_token(self, seen: Seen, seconds: float) -> None:
        """Learn from the time to a first token."""
        self.ttft.add(seen.stratum, seen.of_ttft(), seconds)

    def finished(self, seen: Seen, output_len: int, seconds: float) -> None:
        """Learn from the answer of a request, which took this time after the first token."""
        if output_len > 1:
            self.tpot.add(seen.stratum, seen.of_tpot(), seconds / (output_len - 1))


class Speeds:
    """Times of a replica's steps, interpolated between those that its cost model was asked for."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self.kv_tokens, self.max_num_seqs = profile.kv_tokens, profile.max_num_seqs
        self.budget = profile.max_num_batched_tokens
        self._prefill: dict[int, float] = {}

    def prefill(self, tokens: int) -> float:
        """Return the time of a step that only computes prompts; exact at four to eight points of each power of 2."""
        grid = 1 << max(tokens.bit_length() - 3, 0)
        low = tokens // grid * grid
        below = self._prefill.get(low)
        if below is None:
            below = self._prefill[low] = self._profile.prefill_s(low)
        if low == tokens:
            return below
        above = self._prefill.get(low + grid)
        if above is None:
            above = self._prefill[low + grid] = self._profile.prefill_s(low + grid)
        return below + (above - below) * (tokens - low) / grid

    def decode(self, sequences: int, context: int) -> float:
        """Return the time of a decode step; exact at contexts that are powers of 2."""
        low = 1 << (context.bit_length() - 1)
        below = self._profile.decode_s(sequences, low)
        return below + (self._profile.decode_s(sequences, 2 * low) - below) * (context - low) / low

    def step(self, tokens: int, sequences: int, context: int) -> float:
        """Return the time of a step that computes prompt tokens while sequences decode: all go through the linear
        layers together, and decoding adds the attention to its contexts."""
        if not sequences:
            return self.prefill(tokens)
        attention = self.decode(sequences, context) - self._profile.decode_s(sequences, 1)
        return self.prefill(tokens + sequences) + attention


class Oracle:
    """Predictor that asks the cost model, given what the router sees: prompts are computed in order of arrival, in
    steps as full as they may be, beside as many decoding requests as there are now. A request that finds no slot or no
    memory waits until as many as are ahead of it have left, by the mean length of the answers so far."""

    def __init__(self, params: Any) -> None:
        self._speeds: dict[str, Speeds] = {}
        self._answers = self._answered = 0

    def at(self, now_ns: int) -> None:
        """Do nothing: there is nothing to train."""

    def predict(self, seen: Seen, view: ReplicaView) -> tuple[float, float]:
        """Return TTFT and TPOT in seconds."""
        speeds = self._speeds.get(view.pool)
        if speeds is None:
            speeds = self._speeds[view.pool] = Speeds(view.profile)
        decoding = max(seen.num_requests - seen.num_prompts, 0)
        used = seen.kv_usage * speeds.kv_tokens
        context = max(round(used / view.num_running), 1) if view.num_running else seen.prompt_len
        room = max(speeds.budget - decoding, 1)
        full, rest = divmod(seen.backlog + max(round(seen.prompt_len * (1 - seen.share)), 1), room)
        ttft = full * speeds.step(room, decoding, context) if full else 0.0
        ttft += speeds.step(rest, decoding, context) if rest else 0.0
        if decoding:
            step = speeds.decode(decoding, context)
            ttft += step / 2  # what is left of the step under way
            crowded = view.num_running >= speeds.max_num_seqs or used + seen.prompt_len > speeds.kv_tokens
            if crowded and self._answered:
                ttft += (seen.num_waiting + 1) * step * self._answers / self._answered / decoding
        others = seen.num_requests
        mean = (others * context + seen.prompt_len) // (others + 1)
        return ttft, speeds.decode(others + 1, max(mean, 1))

    def first_token(self, seen: Seen, seconds: float) -> None:
        """Do nothing: there is nothing to learn."""

    def finished(self, seen: Seen, output_len: int, seconds: float) -> None:
        """Count the length of an answer."""
        self._answers += output_len
        self._answered += 1
