"""One-step forecasts for planners: constant, ARIMA, and Kalman (as in NVIDIA Dynamo's planner 1.6.1)."""

from __future__ import annotations

from typing import Protocol

import numpy as np


class Forecast(Protocol):
    """Predictor of the next value of a series."""

    def add(self, value: float) -> None:
        """Record the value of one interval."""

    def next(self) -> float:
        """Return the expected next value, or 0 before any value is recorded."""


class Constant:
    """Forecast that repeats the last value."""

    def __init__(self) -> None:
        self._last = 0.0

    def add(self, value: float) -> None:
        """Record the value of one interval."""
        self._last = value

    def next(self) -> float:
        """Return the last value."""
        return self._last


class Kalman:
    """Kalman filter of level and trend with the given noise. Returns the last value until `least` values are
    recorded."""

    def __init__(self, level: float = 1.0, trend: float = 0.1, noise: float = 10.0, least: int = 5) -> None:
        self._state = np.zeros(2)
        self._cov = np.eye(2) * 1e4
        self._step = np.array([[1.0, 1.0], [0.0, 1.0]])
        self._drift, self._noise, self._least = np.diag([level, trend]), noise, least
        self._count, self._last = 0, 0.0

    def add(self, value: float) -> None:
        """Record the value of one interval."""
        self._count, self._last = self._count + 1, value
        if self._count == 1:
            self._state[0] = value
            return
        state = self._step @ self._state
        cov = self._step @ self._cov @ self._step.T + self._drift
        gain = cov[:, 0] / (cov[0, 0] + self._noise)
        self._state = state + gain * (value - state[0])
        self._cov = cov - np.outer(gain, cov[0])

    def next(self) -> float:
        """Return the level one step ahead."""
        return float((self._step @ self._state)[0]) if self._count >= self._least else self._last


class Arima:
    """ARIMA(1, 1, 0): each difference is regressed on the previous one by least squares over the last `window` values.
    Returns the last value until `least` values are recorded. Dynamo searches for orders with pmdarima; this is the
    simplest substitute."""

    def __init__(self, window: int = 50, least: int = 5) -> None:
        self._values: list[float] = []
        self._window, self._least = window, least

    def add(self, value: float) -> None:
        """Record the value of one interval."""
        self._values = [*self._values, value][-self._window :]

    def next(self) -> float:
        """Return the last value plus the share of its last change that is expected to recur."""
        if len(self._values) < self._least:
            return self._values[-1] if self._values else 0.0
        change = np.diff(self._values)
        before, after = change[:-1], change[1:]
        weight = float(before @ before)
        again = float(before @ after) / weight if weight > 0 else 0.0
        return self._values[-1] + min(max(again, -1.0), 1.0) * float(change[-1])


FORECASTS = {"constant": Constant, "kalman": Kalman, "arima": Arima}
