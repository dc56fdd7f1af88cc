"""Predicted output lengths, which policies receive instead of the true ones.

A predictor is `max_tokens` (no prediction: the cap, which every engine knows), `random:error=0.3` (the true length
times a lognormal factor of median 1, with the stated mean absolute relative error), or `exact`.
"""

from __future__ import annotations

import math

import numpy as np

from servesim import draws
from servesim.errors import UserError, suggest
from servesim.parsing import pairs
from servesim.workload.trace import Ints, Trace

PREDICTORS = ("max_tokens", "random", "exact")
MOST_ERROR = 100.0


def predict(spec: str, trace: Trace, seed: int = 0, first: int = 0) -> Ints:
    """Return the predicted number of output tokens (at least 1) for each row, followed by those for each further
    sample. `first` is the number of the first row. Raise UserError if `spec` is not a known predictor."""
    name, error = parse_predictor(spec)
    cap, truth, rows = trace.max_tokens, trace.output_len, first + np.arange(len(trace))
    samples = np.zeros_like(rows)
    if trace.samples is not None:
        further = trace.samples.rows
        place = 1 + np.arange(len(further)) - trace.samples.offsets[further]
        cap, truth = np.concatenate((cap, cap[further])), np.concatenate((truth, trace.samples.output_len))
        rows, samples = np.concatenate((rows, first + further)), np.concatenate((samples, place))
    if name == "max_tokens":
        return cap
    if name == "exact" or error == 0:
        return truth
    factor = np.exp(lognormal_sigma(error) * draws.normal(seed, "predicted output", rows, samples))
    return np.maximum(np.rint(truth * factor), 1).astype(np.int64)


def parse_predictor(spec: str) -> tuple[str, float]:
    """Return a predictor's name and stated error."""
    name, _, rest = spec.partition(":")
    if name not in PREDICTORS:
        raise UserError(f"predictor: unknown predictor {name!r}{suggest(name, PREDICTORS)}")
    params = pairs(f"predictor {name}", rest)
    known = ("error",) if name == "random" else ()
    for key in params:
        if key not in known:
            raise UserError(f"predictor {name}: unknown parameter {key!r}{suggest(key, known)}")
    if name != "random":
        return name, 0.0
    try:
        error = float(params["error"])
    except KeyError:
        raise UserError("predictor random: specify the mean relative error, such as random:error=0.3") from None
    except ValueError:
        error = math.nan
    if not 0 <= error <= MOST_ERROR:
        raise UserError(f"predictor random: error is {params['error']!r} but must be from 0 to {MOST_ERROR:g}")
    return name, error


def lognormal_sigma(error: float) -> float:
    """Return the sigma for which exp(sigma Z), with Z standard normal, has mean absolute deviation `error` from 1.

    E|exp(sigma Z) - 1| = exp(sigma^2 / 2) erf(sigma / sqrt 2).
    """
    from scipy.optimize import brentq

    if error == 0:
        return 0.0
    sigma: float = brentq(lambda s: math.exp(s * s / 2) * math.erf(s / math.sqrt(2)) - error, 0.0, 4.0)
    return sigma
