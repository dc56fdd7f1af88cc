"""Production traffic as a sum of clients, each with its own rate, burstiness and lengths (Xiang et al., ServeGen,
NSDI'26).

A fit of one day holds the total rate of all clients in each ten-minute window. For each client and quarter of the day,
it also holds the client's share of that rate, the mean coefficient of variation (cv) of its gaps, and quantiles of its
lengths. In a twin, every client sends its share of requests in every ten-minute window. The gaps are evenly spaced
quantiles of a Weibull distribution whose exponent gives them the fitted cv, and each seed orders them differently.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from servesim import draws
from servesim.errors import UserError
from servesim.untrusted import csv_rows, read_json
from servesim.workload.trace import Ints, Trace

from .tables import GIVEN_LEVELS

Floats = NDArray[np.float64]
DAY_S, WINDOW_S, WINDOWS, QUARTERS = 86_400, 600, 144, 4
SCALE = 0.01  # default share of the load: about what a server with one or two GPUs can handle
SECOND = 1_000_000_000


class Arrivals(NamedTuple):
    """Columns of requests: arrival times (seconds of the day), clients, and lengths."""

    at: Floats
    client: Ints
    prompt: Ints
    output: Ints

    def take(self, which: Any) -> Arrivals:
        """Return the selected requests."""
        return Arrivals(*(column[which] for column in self))


@dataclass(frozen=True, slots=True)
class ServeGenFit:
    """Fitted statistics of a day."""

    name: str
    original: dict[str, Any]
    rate: Floats  # requests/s of all clients, by ten-minute window
    share: Floats  # (client, quarter of the day): % of the rate
    cv: Floats  # (client, quarter): cv of the gaps; 0 if the client sends nothing
    prompt: Floats  # (client, quarter, level in GIVEN_LEVELS): quantiles, NaN if unknown
    output: Floats

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ServeGenFit:
        day = data["servegen"]
        unknown = [np.nan] * len(GIVEN_LEVELS)
        lengths = [np.array([[q or unknown for q in row] for row in day[side]]) for side in ("prompt", "output")]
        return cls(data["name"], data["original"], *(np.array(day[k]) for k in ("rate", "share", "cv")), *lengths)

    def draw(
        self,
        requests: int | None = None,
        seed: int = 0,
        scale: float = SCALE,
        start: float = 0,
        seconds: float | None = None,
    ) -> Trace:
        """Draw the requests that arrive from `start` on for `seconds` (by default until the end of the day), or the
        first `requests` of these; every client's rate is multiplied by `scale`."""
        seconds = DAY_S - start if seconds is None else seconds
        if not 0 < scale <= 100:
            raise UserError(f"preset {self.name}: scale is {scale:g} but must be above 0 and at most 100")
        if not 0 <= start < start + seconds <= DAY_S:
            raise UserError(
                f"preset {self.name}: the window start={start:g}, seconds={seconds:g} does not fit within one day"
            )
        exponents = self.exponents(scale)
        parts: list[Arrivals] = []
        for window in range(int(start // WINDOW_S), int(-(-(start + seconds) // WINDOW_S))):
            drawn = self._window(window, scale, seed, exponents)
            parts.append(drawn.take((drawn.at >= start) & (drawn.at < start + seconds)))
            if requests is not None and sum(len(part.at) for part in parts) >= requests:
                break
        drawn = Arrivals(*(np.concatenate(column) for column in zip(*parts, strict=True)))
        if len(drawn.at) < (1 if requests is None else max(requests, 1)):
            raise UserError(
                f"preset {self.name}: there are only {len(drawn.at)} requests in this period (increase scale)"
            )
        drawn = drawn.take(slice(requests))
        note = f"fitted twin of {self.original['file']} ({self.original['citation']}), seed {seed}"
        return Trace.from_lengths(
            f"preset:{self.name}",
            np.rint((drawn.at - start) * SECOND).astype(np.int64),
            drawn.prompt,
            drawn.output,
            labels={"tenant": tuple([f"client-{number}" for number in drawn.client.tolist()])},
            notes=(note, f"scale {scale:g} of a day of {self.rate.mean():.0f} requests/s on average"),
        )

    def draw_lengths(self, requests: int, seed: int) -> tuple[Ints, Ints]:
        """Draw the prompt and output lengths of all clients together."""
        rows = np.arange(requests)
        load = self.rate.reshape(QUARTERS, -1).sum(axis=1)
        quarter = np.searchsorted(np.cumsum(load / load.sum()), draws.uniform(seed, "servegen quarter", rows))
        client = np.zeros(requests, dtype=np.int64)
        for q in range(QUARTERS):
            reach = np.cumsum(self.share[:, q])
            here = quarter == q
            client[here] = np.searchsorted(reach / reach[-1], draws.uniform(seed, "servegen client", rows[here]))
        return self._lengths(client, quarter, seed, rows, 0)

    def exponents(self, scale: float) -> Floats:
        """Return p for each client and quarter such that the gaps (-log u)^p in a window, with u evenly spaced, have
        the client's coefficient of variation in that quarter."""
        mean = self.rate.reshape(QUARTERS, -1).mean(axis=1) * self.share * WINDOW_S * scale
        out = np.ones_like(self.cv)
        for cell in np.argwhere(self.cv > 0):
            out[tuple(cell)] = _exponent(float(self.cv[tuple(cell)]), int(np.ceil(mean[tuple(cell)])) + 1)
        return out

    def _window(self, window: int, scale: float, seed: int, exponents: Floats) -> Arrivals:
        """Draw the requests of one window, in time order."""
        quarter = window * QUARTERS // WINDOWS
        wanted = self.rate[window] * self.share[:, quarter] * WINDOW_S * scale
        cells = window * len(wanted) + np.arange(len(wanted))
        counts = np.floor(wanted + draws.uniform(seed, "servegen count", cells)).astype(np.int64)
        times = [self._times(int(cell), int(n), float(p), seed) for cell, n, p in
                 zip(cells, counts, exponents[:, quarter], strict=True)]  # fmt: skip
        client = np.repeat(np.arange(len(counts)), counts)
        number = np.concatenate([np.arange(n) for n in counts])
        prompt, output = self._lengths(client, np.full_like(client, quarter), seed, cells[client], number)
        at = window * WINDOW_S + np.concatenate(times)
        return Arrivals(at, client, prompt, output).take(np.argsort(at, kind="stable"))

    def _lengths(self, client: Ints, quarter: Ints, seed: int, rows: Any, positions: Any) -> tuple[Ints, Ints]:
        """Draw prompt and output lengths by inverse transform. For a client without known lengths, each request uses
        the lengths of another client and quarter, drawn with probability proportional to load."""
        cell = client * QUARTERS + quarter
        known = ~np.isnan(self.prompt[:, :, 0].ravel())
        load = (self.share * self.rate.reshape(QUARTERS, -1).sum(axis=1)).ravel()
        reach = np.cumsum(np.where(known, load, 0.0))
        lost = ~known[cell]
        cell[lost] = np.searchsorted(reach / reach[-1], draws.uniform(seed, "servegen stand-in", rows, positions)[lost])
        drawn = []
        for side, tables in (("prompt", self.prompt), ("output", self.output)):
            u = draws.uniform(seed, f"servegen {side}", rows, positions)
            values = np.empty(len(u))
            for number in np.unique(cell):
                here = cell == number
                values[here] = np.interp(u[here], GIVEN_LEVELS, tables[number // QUARTERS, number % QUARTERS])
            drawn.append(np.maximum(np.rint(values), 1).astype(np.int64))
        return drawn[0], drawn[1]

    @staticmethod
    def _times(cell: int, count: int, exponent: float, seed: int) -> Floats:
        """Draw `count` times within a window, such that the gaps fill the window."""
        if count == 0:
            return np.empty(0)
        gaps = _gaps(count + 1, exponent)[np.argsort(draws.uniform(seed, "servegen gaps", cell, np.arange(count + 1)))]
        ends = np.cumsum(gaps)
        return np.asarray(ends[:-1] / ends[-1] * WINDOW_S)


def _gaps(count: int, exponent: float) -> Floats:
    u = (np.arange(count) + 0.5) / count
    return np.asarray((-np.log(u)) ** exponent)


def _exponent(cv: float, count: int) -> float:
    """Return the exponent for which `count` gaps have the given coefficient of variation, or come as close to it as
    `count` gaps can."""
    from scipy.optimize import brentq

    def excess(exponent: float) -> float:
        gaps = _gaps(count, exponent)
        return float(gaps.std() / gaps.mean()) - cv

    low, high = 0.05, 60.0
    if excess(high) < 0:
        return high
    return low if excess(low) > 0 else float(brentq(excess, low, high, xtol=1e-4))


def fit_servegen(folder: Path) -> dict[str, Any]:
    """Fit the statistics of the first day of a ServeGen workload from `chunk-N-trace.csv` (window start s, rate, cv,
    pattern, two parameters) and, if present, `chunk-N-dataset.json` (histograms of lengths per window)."""
    files = sorted(folder.glob("chunk-*-trace.csv"), key=lambda path: int(path.name.split("-")[1]))
    if not files:
        raise UserError(f"{folder}: no chunk-N-trace.csv in it")
    rates, cvs = (np.array(column) for column in zip(*(_profile(path) for path in files), strict=True))
    rate = rates.sum(axis=0)
    by_quarter = rates.reshape(len(files), QUARTERS, -1)
    share = by_quarter.sum(axis=2) / rate.reshape(QUARTERS, -1).sum(axis=1)
    weighted = (by_quarter * cvs.reshape(len(files), QUARTERS, -1)).sum(axis=2)
    cv = np.divide(weighted, by_quarter.sum(axis=2), out=np.zeros_like(share), where=share > 0)
    sends = share.sum(axis=1) > 0
    lengths = [_length_tables(path) for path, kept in zip(files, sends, strict=True) if kept]
    return {
        "servegen": {
            "rate": np.round(rate, 2).tolist(),
            "share": [[float(f"{x:.4g}") for x in row] for row in share[sends].tolist()],
            "cv": np.round(cv[sends], 2).tolist(),
            "prompt": [sides[0] for sides in lengths],
            "output": [sides[1] for sides in lengths],
        }
    }


def _profile(path: Path) -> tuple[Floats, Floats]:
    rate, cv = np.zeros(WINDOWS), np.zeros(WINDOWS)
    for line, row in enumerate(csv_rows(path, named=False), start=1):
        try:
            window = int(float(row[0])) // WINDOW_S
            if window < WINDOWS:
                rate[window], cv[window] = float(row[1]), float(row[2])
        except (ValueError, IndexError, OverflowError):
            raise UserError(f"{path}: line {line}: must have window start, rate, cv, pattern and two numbers") from None
    return rate, cv


def _length_tables(path: Path) -> tuple[list[list[float]], list[list[float]]]:
    """Return the quantiles of prompt and output lengths by quarter of the day; a quarter without lengths is empty."""
    beside = path.with_name(path.name.replace("-trace.csv", "-dataset.json"))
    windows = read_json(beside) if beside.exists() else {}
    tables: list[list[list[float]]] = [[[] for _ in range(QUARTERS)] for _ in range(2)]
    try:
        for start, window in windows.items():
            quarter = int(start) * QUARTERS // DAY_S
            if 0 <= quarter < QUARTERS:
                sides = [ast.literal_eval(window[key]) for key in ("input_tokens", "output_tokens")]
                if all(sides):  # a client with no requests in a window has empty histograms
                    tables[0][quarter], tables[1][quarter] = (_quantiles(side) for side in sides)
    except (ValueError, TypeError, LookupError, AttributeError, SyntaxError, RecursionError, MemoryError):
        raise UserError(f"{beside}: must have histograms of input_tokens and output_tokens by window") from None
    return tables[0], tables[1]


def _quantiles(histogram: dict[int, float]) -> list[float]:
    """Return the quantiles at GIVEN_LEVELS of a histogram of token counts."""
    tokens = np.array(sorted(histogram))
    reached = np.cumsum([histogram[t] for t in tokens.tolist()])
    at = np.searchsorted(reached / reached[-1], GIVEN_LEVELS - 1e-12)
    quantiles: list[float] = tokens[np.minimum(at, len(tokens) - 1)].tolist()
    return quantiles
