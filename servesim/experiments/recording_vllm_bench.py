"""Runs of `vllm bench serve`: aggregates, plus lengths and server facts from the files next to them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from servesim.experiments.recording import Ints, RecordedRun, read_json, run_name, settings_beside, stated_server
from servesim.untrusted import read_text

BENCH = {"completed", "total_input_tokens", "total_output_tokens", "mean_ttft_ms"}
DRAFTERS = ("eagle3", "eagle", "mtp", "medusa", "ngram")
MOST_SPREAD = 0.99
COUNTER = re.compile(
    r"^vllm:(prefix_cache_hits|prefix_cache_queries|spec_decode_num_drafts|spec_decode_num_accepted_tokens_per_pos)"
    r'_total\{(?:.*position="(\d+)")?.* (\S+)$',
    re.MULTILINE,
)
NO_LENGTHS = "request lengths are not recorded, so all requests have the mean length"


def read_bench(path: Path, root: Path) -> RecordedRun:
    """Read the JSON of `vllm bench serve`: aggregates, plus the lengths and times of requests if they were saved."""
    record = read_json(path)
    settings = {**cache_config(_counters(path)), **settings_beside(path, root)}
    count = int(record["completed"])
    ttft = np.array(record["ttfts"]) * 1e3 if record.get("ttfts") else np.full(count, np.nan)
    gaps = record.get("itls")
    e2el = ttft + np.array([1e3 * sum(g) for g in gaps]) if gaps else np.full(count, np.nan)
    totals = {"output_throughput": float(record["output_throughput"])}
    for metric in ("ttft", "tpot", "e2el"):
        for ours, theirs in (("mean", "mean"), ("p50", "median"), ("p99", "p99")):
            if f"{theirs}_{metric}_ms" in record:
                totals[f"{metric}_{ours}"] = float(record[f"{theirs}_{metric}_ms"])
    grown = _grown(path)
    drafter, acceptance, unknown = _speculation(path, settings, record, _accepted(grown))
    stated = stated_server(path, settings, record.get("model_id"))
    server = replace(stated, speculation=drafter, acceptance=acceptance)
    rate = record.get("request_rate")
    open_loop = rate not in (None, "inf")
    starts = np.array(record.get("start_times") or []) if open_loop else np.zeros(count)
    timed = len(starts) == count
    return RecordedRun(
        name=run_name(path, root),
        path=path,
        format="vllm bench",
        server=server,
        arrival_ns=np.rint(starts * 1e9).astype(np.int64) if timed else np.zeros(count, np.int64),
        prompt_len=_lengths(record, "input_lens", "total_input_tokens", count),
        output_len=_lengths(record, "output_lens", "total_output_tokens", count),
        ttft_ms=ttft,
        e2el_ms=e2el,
        concurrency=None if open_loop else int(record.get("max_concurrency") or count),
        hit_rate=_hit_rate(grown),
        totals=totals | {key: float(record[key]) for key in ("total_input_tokens", "total_output_tokens")},
        unpriced=unknown if timed else "its arrival times are not recorded",
        notes=() if record.get("input_lens") else (NO_LENGTHS,),
    )


def with_lengths(runs: Sequence[RecordedRun]) -> list[RecordedRun]:
    """Fill in the lengths of runs that did not record them, from a neighboring run that sent the same prompts.

    The client draws prompt lengths from one seed, so a shorter run sends the same prompts as the beginning of a longer
    run; this is verified by comparing the total prompt lengths, to the token. Answer lengths are drawn after all
    prompts, so they have the same distribution but different values; they are scaled to the run's own total.
    """
    known = [run for run in runs if run.format == "vllm bench" and NO_LENGTHS not in run.notes]
    return [_with_lengths(run, known) if NO_LENGTHS in run.notes else run for run in runs]


def _with_lengths(run: RecordedRun, known: Sequence[RecordedRun]) -> RecordedRun:
    count = len(run)
    for other in known:
        if len(other) < count or other.prompt_len[:count].sum() != run.totals["total_input_tokens"]:
            continue
        output = _summing_to(other.output_len[:count], int(run.totals["total_output_tokens"]))
        note = f"prompt lengths are taken from {other.name} (same total), and answers have this run's mean length"
        notes = tuple(note if n == NO_LENGTHS else n for n in run.notes)
        return replace(run, prompt_len=other.prompt_len[:count].copy(), output_len=output, notes=notes)
    return run


def _summing_to(lengths: Ints, total: int) -> Ints:
    """Return lengths that are proportional to the given ones and add up to `total`, each at least 1."""
    scaled = np.diff(np.rint(np.cumsum(lengths) * (total / lengths.sum())), prepend=0.0)
    return np.asarray(np.maximum(scaled, 1), dtype=np.int64)


def _lengths(record: dict[str, Any], name: str, total: str, count: int) -> Ints:
    if record.get(name):
        return np.array(record[name], dtype=np.int64)
    return np.full(count, max(1, round(record[total] / max(count, 1))), dtype=np.int64)


def _counters(path: Path, when: str = "m1") -> str:
    """Return the server's counters after the run (`<stem>.m1.gz`; m0 holds those before it), or an empty string if
    there are none."""
    paths = [path.with_name(f"{path.name.removesuffix('.json')}.{when}{end}") for end in (".gz", "")]
    return "\n".join(read_text(p) for p in paths if p.is_file())


def cache_config(counters: str) -> dict[str, Any]:
    """Return the number of KV blocks, their size and whether prefixes are cached, as stated in the server's
    counters."""
    line = next((row for row in counters.splitlines() if row.startswith("vllm:cache_config_info{")), "")
    stated = dict(re.findall(r'(\w+)="([^"]*)"', line))
    found = {key: int(stated[key]) for key in ("num_gpu_blocks", "block_size") if stated.get(key, "").isdigit()}
    caching = stated.get("enable_prefix_caching")
    return found | ({"enable_prefix_caching": caching == "True"} if caching is not None else {})


def _speculation(
    path: Path, settings: dict[str, Any], record: dict[str, Any], rates: list[float]
) -> tuple[str, str, str]:
    """Return (speculator, acceptance, reason they are unknown) from the settings next to a run, the names of its
    folders and the acceptance `rates` of the server's draft counters. All are empty without drafts.

    The counters also include warm-up requests, which increase the counts by a fifth. The run's own acceptance length
    follows from its mean gap between chunks; the acceptance rates are those of the counters, scaled to match that
    length.
    """
    stated = settings.get("speculative_config") or {}
    length = _acceptance_length(record)
    if rates and length:
        rates = [min(1.0, rate * (length - 1.0) / sum(rates)) for rate in rates]
    if not stated and not rates:
        return "", "", ""
    parts = reversed(path.parts)
    named = next((method for part in parts for method in DRAFTERS if re.match(rf"{method}([_.-]|$)", part)), "")
    method = stated.get("method") or named
    k = int(stated.get("num_speculative_tokens") or len(rates))
    if method not in DRAFTERS or not k or not rates:
        return "", "", "not priced: it used speculation, but the method or the acceptance rate is not recorded"
    return f"{method}:k={k}", "positions:marginal=" + "/".join(f"{rate:.6f}" for rate in rates) + _spread(record), ""


def _spread(record: dict[str, Any]) -> str:
    """Return the setting for how much acceptance varies between requests. It is taken from the variation of TPOT, which
    has almost no other cause when drafts are used."""
    std, mean = record.get("std_tpot_ms"), record.get("mean_tpot_ms")
    return f",spread={min(std / mean, MOST_SPREAD):.4f}" if std and mean else ""


def _acceptance_length(record: dict[str, Any]) -> float | None:
    """Return the tokens per chunk of a streamed answer, not counting first tokens: tokens divided by gaps. The number
    of gaps is the time after first tokens divided by the mean gap."""
    count, gap = record["completed"], record.get("mean_itl_ms")
    decoding = count * (record.get("mean_e2el_ms", 0.0) - record["mean_ttft_ms"])
    return (record["total_output_tokens"] - count) / (decoding / gap) if gap and decoding > 0 else None


def _accepted(grown: dict[str, float]) -> list[float]:
    """Return the number of accepted draft tokens at each position divided by the number of verifications during the
    run."""
    drafts = grown.get("spec_decode_num_drafts", 0.0)
    return [grown[position] / drafts for position in sorted(filter(str.isdigit, grown), key=int)] if drafts > 0 else []


def _hit_rate(grown: dict[str, float]) -> float | None:
    """Return the share of queried tokens found in the server's prefix cache during the run, or None if it has no such
    cache."""
    hits, queries = grown.get("prefix_cache_hits"), grown.get("prefix_cache_queries", 0.0)
    return hits / queries if hits is not None and queries > 0 else None


def _grown(path: Path) -> dict[str, float]:
    """Return by how much the server's counters grew during the run: those of drafts and of prefix tokens by name, and
    the accepted draft tokens by position."""
    after, before = (
        {position or name: float(value) for name, position, value in COUNTER.findall(_counters(path, when))}
        for when in ("m1", "m0")
    )
    return {name: value - before.get(name, 0.0) for name, value in after.items()}
