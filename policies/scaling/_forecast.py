"""Forecasts of one step ahead, for planners: constant, ARIMA and Kalman (NVIDIA Dynamo's planner 1.6.1 has these)."""

from __future__ import annotations

from typing import Protocol

import numpy as np


class Forecast(Protocol):
    """Predicts the next of a series of values."""

    def add(self, value: float) -> None:
        """Record the value of one interval."""

    def next(self) -> float:
        """Return what is expected next; 0 before anything has come."""


class Constant:
    """The next is as the last."""

    def __init__(self) -> None:
        self._last = 0.0

    def add(self, value: float) -> None:
        """Record the value of one interval."""
        self._last = value

    def next(self) -> float:
        """Return the last."""
        return self._last


class Kalman:
    """Level and trend, whose noise is as stated; the last value until `least` have come."""

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
        """Return the level one step on."""
        return float((self._step @ self._state)[0]) if self._count >= self._least else self._last


class Arima:
    """ARIMA(1, 1, 0): differences that follow the one before, by least squares over the last `window` values; the last
    value until `least` have come. Dynamo has pmdarima search for orders; this is the plainest stand-in."""

    def __init__(self, window: int = 50, least: int = 5) -> None:
        self._values: list[float] = []
        self._window, self._least = window, least

    def add(self, value: float) -> None:
        """Record the value of one interval."""
        self._values = [*self._values, value][-self._window :]

    def next(self) -> float:
        """Return the last value and the share of its last change that is expected again."""
        if len(self._values) < self._least:
            return self._values[-1] if self._values else 0.0
        change = np.diff(self._values)
        before, after = change[:-1], change[1:]
        weight = float(before @ before)
        again = float(before @ after) / weight if weight > 0 else 0.0
        return self._values[-1] + min(max(again, -1.0), 1.0) * float(change[-1])


FORECASTS = {"constant": Constant, "kalman": Kalman, "arima": Arima}
