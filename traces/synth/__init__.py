"""Synthetic traces from one line: `arrivals=poisson,rate=20,prompt=lognormal(p50=512,p95=2048),output=128`.

    arrivals  poisson | constant | gamma(cv=2) or gamma(burstiness=0.25) | mmpp(ratio=10,on=5,off=20)   [poisson]
    rate      mean requests/s                                                                              [1]
    prompt    N | fixed(N) | uniform(low,high) | lognormal(mean,sigma) or lognormal(p50,p95) | empirical(1|5|9) [512]
    output    like prompt                                                                                  [128]
    n         like prompt: samples per prompt, each with a length drawn like the first's                     [1]
    lengths   a preset's name: prompt and output drawn jointly from its tables, instead of prompt and output
    prefix    shared(groups=10,length=256,share=1,zipf=1): the first `length` tokens of a `share` of the prompts
              are one of `groups` prefixes, chosen with Zipf popularity (zipf=0: uniform)                [none]
    turns     chat(turns=5,think=10): requests are turns of conversations that begin at the rate; a later prompt is the
              whole conversation so far plus `prompt` new tokens, sent `think` s after the output on average [none]

Every draw is keyed by (seed, purpose, request, sample), so request i has the same lengths and prefix for any number of
requests, rate or arrival process, and another rate only stretches or compresses the same arrivals.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servesim.errors import UserError, suggest
from servesim.workload.trace import Content, Ints, Samples, Trace

from ..spec import Call, parse_spec
from . import arrivals, lengths, prefixes, turns

DEFAULTS = {"arrivals": "poisson", "rate": "1", "prompt": "512", "output": "128"}
DEFAULTS |= {"n": "", "lengths": "", "prefix": "", "turns": ""}
DEFAULT_REQUESTS = 1000
MOST_SAMPLES = 1024

__all__ = ["DEFAULT_REQUESTS", "drawn_in_chunks", "synthesize", "synthesize_chunks"]


def synthesize(spec: str, requests: int | None = None, seed: int = 0) -> Trace:
    """Draw the trace that a spec describes; `requests` defaults to 1000."""
    n, calls = _parse(spec, requests)
    rows = np.arange(n, dtype=np.int64)
    arrival_ns = _ns(arrivals.draw(calls["arrivals"], rows, _rate(calls), seed))
    if "lengths" in calls:
        from ..presets import load_fit  # presets import synth

        prompt, output = load_fit(parse_spec(spec)["lengths"]).draw_lengths(n, seed)
    else:
        prompt, output = (lengths.draw(calls[side], rows, seed) for side in ("prompt", "output"))
    content: Content | None = None
    if "prefix" in calls:
        content = prefixes.draw(calls["prefix"], prompt, seed)
    columns: dict[str, Any] = {
        "arrival_ns": arrival_ns,
        "prompt_len": prompt,
        "output_len": output,
        "content": content,
        "samples": _samples(calls, rows, output, seed) if "n" in calls else None,
    }
    if "turns" in calls:
        if "n" in calls:
            raise UserError("synth: n and turns cannot be combined: a turn has one answer")
        columns.pop("samples")
        columns = turns.draw(calls["turns"], arrival_ns, prompt, output, content, seed)
    return Trace.from_lengths(_name(spec), **columns, notes=(_note(seed),))


def drawn_in_chunks(spec: str) -> bool:
    """Return whether a spec's requests can be drawn in chunks. They cannot if states or conversations span
    requests."""
    _, calls = _parse(spec, None)
    return calls["arrivals"].name != "mmpp" and not {"lengths", "turns"} & set(calls)


def synthesize_chunks(spec: str, requests: int | None, seed: int, chunk: int) -> Iterator[Trace]:
    """Draw the trace that a spec describes, and yield it `chunk` requests at a time."""
    n, calls = _parse(spec, requests)
    clock = arrivals.Clock(calls["arrivals"], _rate(calls), seed)
    for first in range(0, n, chunk):
        rows = np.arange(first, min(first + chunk, n), dtype=np.int64)
        prompt, output = (lengths.draw(calls[side], rows, seed) for side in ("prompt", "output"))
        content = prefixes.draw(calls["prefix"], prompt, seed, first) if "prefix" in calls else None
        samples = _samples(calls, rows, output, seed) if "n" in calls else None
        times, notes = _ns(clock.draw(rows)), (_note(seed),)
        yield Trace.from_lengths(_name(spec), times, prompt, output, content=content, samples=samples, notes=notes)


def _samples(calls: dict[str, Call], rows: Ints, output: Ints, seed: int) -> Samples | None:
    further = lengths.draw(calls["n"], rows, seed) - 1
    if further.max() >= MOST_SAMPLES:
        raise UserError(f"synth: n is {further.max() + 1} but must be at most {MOST_SAMPLES}")
    if "lengths" in calls:  # joint distribution: with lengths=PRESET, further outputs are as long as the first
        return Samples.of(further, np.repeat(output, further))
    again = np.repeat(rows, further)
    sample = 1 + np.arange(len(again)) - np.repeat(np.cumsum(further) - further, further)
    return Samples.of(further, lengths.draw(calls["output"], again, seed, sample))


def _parse(spec: str, requests: int | None) -> tuple[int, dict[str, Call]]:
    """Return the number of requests, and the values of all keys that are given or have defaults."""
    n = DEFAULT_REQUESTS if requests is None else requests
    if n < 1:
        raise UserError(f"synth: requests is {n} but must be at least 1")
    given = parse_spec(spec)
    for key in given:
        if key not in DEFAULTS:
            raise UserError(f"synth: unknown key {key!r}{suggest(key, DEFAULTS)}")
    if "lengths" in given and ("prompt" in given or "output" in given):
        raise UserError("synth: lengths=PRESET sets both prompt and output, so remove these keys")
    calls = {key: Call.parse(key, given.get(key, default)) for key, default in DEFAULTS.items()}
    return n, {key: call for key, call in calls.items() if call.name}


def _rate(calls: dict[str, Call]) -> float:
    rate = calls["rate"].number()
    if rate <= 0:
        raise UserError(f"synth: rate is {rate:g} but must be positive")
    return rate


def _ns(seconds: NDArray[np.float64]) -> Ints:
    if not seconds.max(initial=0.0) < (1 << 62) / 1e9:
        raise UserError("synth: the rate is too low: the last request would arrive after 146 years")
    return np.rint(seconds * 1e9).astype(np.int64)


def _name(spec: str) -> str:
    return f"synth:{spec.strip()}"


def _note(seed: int) -> str:
    return f"synthetic, seed {seed}"
