"""A serving case as used by the intervals: model, engine and hardware, load, and simulated results."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

METRICS = ("ttft", "tpot", "e2e")
"""Metrics for which intervals are known, as means over requests; E2E is TTFT + (mean output length - 1) TPOT."""
SHORT_TTFT_MS = 100.0
"""Simulated TTFT below which TTFT is mostly front-end and host time, not prefill or queueing."""
LOADS = ((8.0, "1-8"), (32.0, "9-32"), (128.0, "33-128"), (float("inf"), "129-"))
"""Bands of the number of requests in flight on one engine, each with its upper bound."""
CROWDS = (f"1-{LOADS[-2][0]:.0f}", LOADS[-1][1])
"""All bands of `LOADS` but the last, and the last."""
BEYOND = ((0.0, "0"), (0.05, "0-5 %"), (0.25, "5-25 %"), (1.0, "25-100 %"))
"""Bands of the share of GPU time priced beyond the range measured in the tables, each with its upper bound."""
PROMPTS = ((1500.0, "to 1500"), (5000.0, "to 5000"), (float("inf"), "over 5000"))
"""Bands of the mean prompt length in tokens, each with its upper bound."""
_SUFFIX = re.compile(r"(-(instruct|chat|it|fp8|fp4|nvfp4|awq|gptq|int4|hf|base|[0-9]{4}))+$")


@dataclass(frozen=True, slots=True)
class Case:
    """One engine under one load. Times are simulated means in ms; unknown text fields are empty."""

    engine: str
    """Name of its preset: vllm, sglang, tensorrt-llm, ...."""
    version: str
    model: str
    """Key of the model (`model_key`)."""
    gpu: str
    precision: str
    tp: int
    ep: int
    in_flight: float
    """Mean number of requests on the engine; for a closed loop, its number of clients."""
    prompt: float
    """Mean prompt length, tokens."""
    ttft_ms: float
    tpot_ms: float
    extrapolated: float
    """Share of GPU time priced beyond the range measured in the kernel tables, including time from formulas."""
    measured: bool = False
    """Whether the server itself was measured and its host terms fitted to that; else its laboratory is unseen."""

    @property
    def product(self) -> str:
        """Engine, version, model, GPU and precision, regardless of parallelism."""
        return f"{self.engine} {self.version} {self.model} {self.gpu} {self.precision}"

    @property
    def deployment(self) -> str:
        """The `product` plus its parallelism, regardless of load."""
        return f"{self.product} tp{self.tp} ep{self.ep}"

    @property
    def load(self) -> str:
        """The band of `LOADS` that the case is in."""
        return band(self.in_flight, LOADS)

    @property
    def crowd(self) -> str:
        """The last band of `LOADS`, or all other bands combined, because errors in the last band are several times as
        large."""
        return CROWDS[self.load == CROWDS[1]]

    @property
    def short(self) -> bool:
        """Whether the simulated TTFT is below `SHORT_TTFT_MS`."""
        return self.ttft_ms < SHORT_TTFT_MS

    @property
    def beyond(self) -> str:
        """The band of `BEYOND` that the case is in."""
        return band(self.extrapolated, BEYOND)


def band(value: float, bands: Sequence[tuple[float, str]]) -> str:
    """Return the name of the first band whose upper bound is not below `value`, or else the last band."""
    return next((name for most, name in bands if value <= most + 1e-12), bands[-1][1])


def model_key(name: str) -> str:
    """Return a model's name in the form shared by labels, bundled models and folders that contain a config.json."""
    tail = name.removesuffix("/config.json").rstrip("/").rpartition("/")[2]
    tail = tail.removesuffix(".json").removesuffix("_config").rpartition("--")[2]
    return _SUFFIX.sub("", tail.lower())


def version_key(text: str) -> str:
    """Return a version in the form shared by labels, however it is written: 0.12 and v0.12.0 are 0.12.0."""
    try:
        version = Version(text)
    except InvalidVersion:
        return text
    release = ".".join(str(part) for part in (*version.release, 0, 0)[: max(len(version.release), 3)])
    return release + version.public.removeprefix(version.base_version)


def features(case: Case) -> Iterator[tuple[str, str]]:
    """Yield (kind, name) for each feature that a case may share with other cases; each name begins with its kind."""
    engine, short = case.engine, "short" if case.short else "long"
    for kind, what in (
        ("all", ""),
        ("engine", engine),
        ("gpu", case.gpu),
        ("model", case.model),
        ("load", case.load),
        ("crowd", case.crowd),
        ("ttft", short),
        ("beyond", case.beyond),
        ("tp", str(case.tp)),
        ("prompt", band(case.prompt, PROMPTS)),
        ("engine load", f"{engine} {case.load}"),
        ("engine ttft", f"{engine} {short}"),
        ("engine gpu", f"{engine} {case.gpu}"),
        ("version", f"{engine} {case.version}"),
        ("engine model", f"{engine} {case.model}"),
        ("model tp", f"{case.model} {case.tp}"),
        ("product", case.product),
        ("product load", f"{case.product} {case.load}"),
        ("deployment", case.deployment),
        ("deployment load", f"{case.deployment} {case.load}"),
    ):
        yield kind, f"{kind}: {what}".strip()
