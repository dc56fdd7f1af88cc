"""The live server measured over sockets by a client of its own process: `make bench-live`, compiled where `make
compiled` has been run. How close its times are to those of the offline run of its recording, what a machine adds, the
CPU time of a chunk, many streams for long, and faults. Times of an answer are in simulated ms. Linux only."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import servesim
from benchmarks import live_faults
from benchmarks.live_client import Load
from benchmarks.live_server import ROOT, client, seen_by, send, server, stub, timer
from benchmarks.table import machine

DEPLOYMENT = {"model": "llama-3.1-8b", "gpu": "h100"}
FLAGS = [f"--{name}={value}" for name, value in DEPLOYMENT.items()]
STUB_MS = (30.0, 8.0)
"""TTFT and gap of the stub."""
SPEEDS = (0.25, 0.5, 1, 1.5, 2, 3, 4)
KEEPS_UP = 1.05
"""Tokens per chunk above which chunks of a stream are merged, so the server does not keep up."""
Row = dict[str, Any]


def spread(values: Any) -> Row:
    """Return the median, the 90th and 99th percentile, and the maximum."""
    p50, p90, p99, most = np.percentile(values, [50, 90, 99, 100])
    return {"p50": float(p50), "p90": float(p90), "p99": float(p99), "max": float(most)}


def beside_offline(seen: Sequence[Row], recorded: Path, speed: float) -> Row:
    """Compare what a client saw with the run of the recording, request by request, in simulated ms."""
    told = servesim.simulate(trace=str(recorded), **DEPLOYMENT, intervals=False).requests.set_index("row")
    rows = told.loc[[each["row"] for each in seen]]
    sent, first, last = (np.array([each[name] for each in seen]) for name in ("sent", "first", "last"))
    ttft = (first - sent) * speed * 1e3 - rows.ttft_ns.to_numpy() / 1e6
    e2el = (last - sent) * speed * 1e3 - rows.e2el_ns.to_numpy() / 1e6
    tpot = (last - first) * speed * 1e3 / (rows.output_len.to_numpy() - 1)
    offline = rows.tpot_ns.to_numpy() / 1e6
    return {
        "ttft": spread(ttft),
        "ttft_error": spread(abs(ttft)),
        "e2el_error": spread(abs(e2el)),
        "tpot_error": spread(abs(tpot - offline)),
        "tpot_mean": {"live": float(tpot.mean()), "offline": float(offline.mean())},
    }


def recorded_load(speed: float, load: Load) -> tuple[list[Row], Row, Row]:
    """Serve a load; return the requests as the client saw them, and the errors beside the offline run and the timer's
    lateness in ms of the wall."""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "seen.jsonl"
        with server([*FLAGS, f"--speed={speed}", f"--record={record}"]) as running:
            load.port = running.port
            with timer() as late:
                seen = send(load)["requests"]
            running.stop()
        return seen, beside_offline(seen, record, speed), spread(np.array(late) * 1e3)


def closeness(quick: bool) -> Row:
    """20 requests a second at a speed of 0.1, beside the offline run."""
    count = 30 if quick else 120
    _, errors, late = recorded_load(0.1, Load(0, requests=count, rate=20 * 0.1))
    print(f"closeness: speed 0.1, 20/s, {count} requests; |error| in simulated ms, median and 99th percentile")
    for name in ("ttft_error", "e2el_error", "tpot_error"):
        print(f"  {name:<12}{errors[name]['p50']:>9.3f}{errors[name]['p99']:>9.3f}")
    print("  mean TPOT live {live:.3f}, offline {offline:.3f} ms".format(**errors["tpot_mean"]))
    return {"requests": count, "timer_ms": late, **errors}


def delay(quick: bool) -> Row:
    """TTFT at speed 1, 5 requests a second, beyond the offline run's, in turn with a stub's beyond its constant."""
    rounds = []
    count = 20 if quick else 60
    print(f"delay: speed 1, 5/s, {count} requests; TTFT beyond the simulated one, ms; idle timer's lateness, ms")
    print(
        f"  {'round':<6}{'server p50':>11}{'p99':>8}{'stub p50':>10}{'p99':>8}{'beyond':>8}{'timer p50':>11}{'p90':>8}"
    )
    for number in range(1 if quick else 5):
        load = Load(0, requests=count, rate=5, seed=number + 1)
        _, errors, late = recorded_load(1.0, load)
        with stub(*STUB_MS) as port, timer() as beside:
            load.port = port
            seen = send(load)["requests"]
        stubbed = spread([(each["first"] - each["sent"]) * 1e3 - STUB_MS[0] for each in seen])
        both = spread(np.array([*beside]) * 1e3)
        worst = max(late, both, key=lambda each: each["p90"])
        beyond = errors["ttft"]["p50"] - stubbed["p50"]
        rounds.append({"server": errors, "stub_ttft": stubbed, "beyond_ms": beyond, "timer_ms": worst})
        ours = f"{errors['ttft']['p50']:>11.2f}{errors['ttft']['p99']:>8.2f}"
        print(f"  {number:<6}{ours}{stubbed['p50']:>10.2f}{stubbed['p99']:>8.2f}{beyond:>8.2f}"
              f"{worst['p50']:>11.2f}{worst['p90']:>8.2f}")  # fmt: skip
    quietest = min(rounds, key=lambda each: each["timer_ms"]["p90"])
    print(f"  quietest round: {rounds.index(quietest)}")
    return {"requests": count, "rounds": rounds, "quietest": quietest}


def cpu(quick: bool) -> Row:
    """CPU time per chunk of a closed loop of 64 clients at rising speeds, for each build, and two ceilings: the most
    chunks a second that were sent one by one, and what a core would send that did nothing else."""
    builds = {"pure": Path(sys.executable), "compiled": ROOT / ".venv-compiled" / "bin" / "python"}
    found: Row = {}
    print(f"cpu: 64 clients without pause; up to {KEEPS_UP} tokens in a chunk, a server keeps up")
    print(f"  {'build':<10}{'speed':>6}{'chunks/s':>10}{'tokens/chunk':>14}{'us/chunk':>10}{'core':>7}")
    for build, python in builds.items():
        if not python.exists():
            print(f"  {build}: skipped, make compiled builds it")
            continue
        rows = [_cpu_at(speed, python, 2.0 if quick else 8.0) for speed in ((0.5, 2) if quick else SPEEDS)]
        for row in rows:
            print(f"  {build:<10}{row['speed']:>6g}{row['chunks_per_s']:>10,.0f}{row['tokens_per_chunk']:>14.3f}"
                  f"{row['us_per_chunk']:>10.1f}{row['core']:>7.0%}")  # fmt: skip
        kept = max((row["chunks_per_s"] for row in rows if row["tokens_per_chunk"] <= KEEPS_UP), default=0.0)
        whole = 1e6 / min(row["us_per_chunk"] for row in rows)
        found[build] = {"rows": rows, "kept_up_chunks_per_s": kept, "whole_core_chunks_per_s": whole}
        print(f"  {build}: kept up with {kept:,.0f} chunks/s; a whole core would send {whole:,.0f}")
    return found


def _cpu_at(speed: float, python: Path, seconds: float) -> Row:
    with server([*FLAGS, f"--speed={speed}"], python) as running:
        send(Load(running.port, streams=4, seconds=0.5, prompt=64, output=16))  # what the first requests load
        before, began = running.cpu_s(), time.monotonic()
        seen = send(Load(running.port, streams=64, seconds=seconds, prompt=128, output=256))
        used, took = running.cpu_s() - before, time.monotonic() - began
    chunks, tokens = (sum(each[name] for each in seen["requests"]) for name in ("chunks", "tokens"))
    sending = max(each["last"] for each in seen["requests"]) - min(each["first"] for each in seen["requests"])
    return {
        "speed": speed,
        "chunks_per_s": chunks / sending,
        "tokens_per_chunk": tokens / chunks,
        "us_per_chunk": used / chunks * 1e6,
        "core": used / took,
        "client_us_per_chunk": seen["cpu_s"] / chunks * 1e6,
    }


def streams(quick: bool) -> Row:
    """256 sockets for 120 simulated seconds: each token once and in order, and memory that does not grow."""
    count, simulated, speed = (16, 6, 1.0) if quick else (256, 120, 0.3)
    with server([*FLAGS, f"--speed={speed}"]) as running:
        load = Load(running.port, streams=count, seconds=simulated / speed, output=1000, check_words=True)
        process, rss, began = client(load), [], time.monotonic()
        while process.poll() is None and len(rss) < simulated / speed:  # then its output must be read
            rss.append((time.monotonic() - began, running.rss_mb()))
            time.sleep(1)
        requests = seen_by(process)["requests"]
        rss.append((time.monotonic() - began, running.rss_mb()))
    whole = [each for each in requests if not each["error"]]
    right = [each for each in whole if each["tokens"] == each["usage"] == load.output and each["in_order"]]
    first = max(mb for at, mb in rss if at <= 60)
    grown = max(mb for _, mb in rss) - first
    tokens, chunks = (sum(each[name] for each in requests) for name in ("tokens", "chunks"))
    print(f"streams: {count} for {simulated} simulated s at speed {speed:g}")
    print(f"  {len(right):,} of {len(requests):,} answers whole and in order, {tokens:,} tokens in {chunks:,} chunks")
    print(f"  memory: {first:.0f} MB at most in the first minute, {grown:+.1f} MB later")
    return {
        "streams": count, "simulated_s": simulated, "speed": speed, "requests": len(requests), "right": len(right),
        "tokens": tokens, "chunks": chunks, "rss_mb": {"first_minute": first, "grown": grown},
    }  # fmt: skip


def faults(quick: bool) -> list[Row]:
    """Faults of clients and policies."""
    rows = live_faults.run(FLAGS)
    print("faults:")
    for row in rows:
        print(f"  {row['fault']:<12}{'ok' if row['ok'] else 'FAILED':<8}{row['said']}")
    return rows


PARTS: dict[str, Callable[[bool], Any]] = {
    part.__name__: part for part in (closeness, delay, cpu, streams, faults)
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="few requests: to see that it works, no figures to quote")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    args = parser.parse_args(arguments)
    if unknown := [part for part in args.parts if part not in PARTS]:
        parser.error(f"unknown part {unknown[0]}; there are {', '.join(PARTS)}")
    if args.json and not args.json.resolve().parent.is_dir():
        parser.error(f"--json {args.json}: there is no such folder")
    found: Row = {"machine": machine(), "deployment": DEPLOYMENT, "quick": args.quick}
    try:
        for part in args.parts or PARTS:
            found[part] = PARTS[part](args.quick)
    except RuntimeError as error:
        sys.exit(f"error: {error}")
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    wrong = [row["fault"] for row in found.get("faults", []) if not row["ok"]]
    missing = found["streams"]["requests"] - found["streams"]["right"] if "streams" in found else 0
    if wrong or missing:
        sys.exit(f"error: faults {', '.join(wrong)}" if wrong else f"error: {missing} answers were not whole")


if __name__ == "__main__":
    main()
