"""Serving a language model, in eight small experiments.

    python docs/tutorial.py            all of them, in well under a minute
    python docs/tutorial.py 3 5        the third and the fifth

Every lesson is a function of a few lines that prints a table. Read it, guess the next row, change a number, run it
again. Llama-3.1-8B in bf16 on one H100 serves throughout. docs/metrics.md defines the terms.
"""

from __future__ import annotations

import sys
from typing import Any

import servesim

SERVER: dict[str, Any] = {"model": "llama-3.1-8b", "gpu": "h100", "kv": "paged"}
Rows = list[tuple[Any, ...]]


def table(*names: str, rows: Rows) -> Rows:
    """Print rows under names, and hand them back."""
    print("".join(f"{name:>16}" for name in names))
    for row in rows:
        print("".join(f"{value:>16,.2f}" if isinstance(value, float) else f"{value!s:>16}" for value in row))
    return rows


def decoding_reads_the_weights() -> Rows:
    """A decode step reads all weights, for one request or for many: tokens of a batch are nearly free, up to a
    point.

    16 GB of weights at 3.35 TB/s take 4.8 ms by the data sheet, and some 6 by real kernels, whatever the batch.
    Arithmetic and the KV of every sequence come on top.
    """
    rows = []
    for batch in (1, 8, 64, 256):
        trace = "synth:rate=100000,prompt=64,output=256"
        result = servesim.simulate(SERVER, trace=trace, requests=batch, host="none")
        decode = result.steps[result.steps.prefill_tokens == 0]
        step_ms = decode.elapsed_ns.sum() / decode.k.sum() / 1e6
        rows.append((batch, step_ms, batch / step_ms * 1e3))
    return table("requests", "ms a step", "tokens/s", rows=rows)


def prompts_are_arithmetic() -> Rows:
    """A prompt's tokens are computed together: long prompts keep the GPU busy, and the first token waits for them.

    For a short prompt, reading the weights takes longest. From some hundred tokens on, four times the prompt takes four
    times as long, later more: attention grows with the square.
    """
    rows = []
    for prompt in (128, 512, 2048, 8192):
        result = servesim.simulate(SERVER, trace=f"synth:rate=0.1,prompt={prompt},output=2", requests=5, host="none")
        ttft_ms = result.summary["latency_ms"]["ttft"]["mean"]
        rows.append((prompt, ttft_ms, prompt / ttft_ms * 1e3))
    return table("prompt tokens", "TTFT ms", "tokens/s", rows=rows)


def batches_that_wait_and_batches_that_do_not() -> Rows:
    """Static batching keeps a batch until its longest answer is done; continuous batching refills it at every step.

    Forty requests with answers of 10 to 400 tokens, eight places: the same work, in less time.
    """
    rows = []
    for scheduler in ("static:max_batch_size=8", "vllm:max_num_seqs=8"):
        trace = "synth:rate=1000,prompt=100,output=uniform(10,400)"
        summary = servesim.simulate(SERVER, trace=trace, requests=40, scheduler=scheduler).summary
        rows.append((scheduler.partition(":")[0], summary["duration_s"], summary["throughput"]["output_throughput"]))
    return table("scheduler", "seconds", "tokens/s", rows=rows)


def load_and_latency() -> Rows:
    """More requests per second make larger batches: throughput follows the load, and latency rises slowly, then
    fast.

    The last rate is beyond what the server can do. Its queue grows for as long as requests come: "unstable".
    """
    rows = []
    for rate in (1, 4, 10, 40):
        summary = servesim.simulate(SERVER, trace="preset:azure-conv-2023", requests=2000, rate=rate).summary
        latency, engine = summary["latency_ms"], summary["engine"]
        verdict = "unstable" if summary["stability"]["unstable"] else "stable"
        rows.append((rate, engine["batch_size"]["mean"], latency["ttft"]["p99"], latency["tpot"]["mean"], verdict))
    return table("requests/s", "batch", "TTFT p99 ms", "TPOT ms", "", rows=rows)


def memory_is_the_number_of_places() -> Rows:
    """The way KV memory is handed out decides how many requests run at once.

    Memory for 20,000 tokens. Contiguous memory set aside for the longest answer allowed (4,096 tokens) holds few
    requests; blocks taken as tokens come hold many. No engine can know lengths beforehand; the oracle does.
    """
    rows = []
    for kv in ("contiguous:reservation=max", "contiguous:reservation=oracle", "paged"):
        result = servesim.simulate(
            {**SERVER, "kv": kv},
            trace="synth:rate=1000,prompt=200,output=uniform(50,400)",
            requests=200,
            engine={"num_gpu_blocks": 1250, "max_model_len": 4096},
        )
        share, engine = result.summary["kv"], result.summary["engine"]
        name, most = kv.replace("contiguous:reservation=", "contig. "), int(engine["batch_size"]["max"])
        rows.append((name, most, 100 * share["used_share"], result.summary["duration_s"]))
    return table("memory", "most at once", "% used", "seconds", rows=rows)


def prompts_with_a_common_beginning() -> Rows:
    """A system prompt of 1,500 tokens, shared by all requests, is computed once if the prefix cache keeps it."""
    rows = []
    for kv in ("paged", "prefix-hash"):
        trace = "synth:rate=20,prompt=2000,output=50,prefix=shared(groups=1,length=1500)"
        summary = servesim.simulate({**SERVER, "kv": kv}, trace=trace, requests=300).summary
        hits = summary["prefix_cache"]["hit_rate"] if summary["prefix_cache"] else 0.0
        latency = summary["latency_ms"]
        rows.append((kv, 100 * hits, latency["ttft"]["mean"], latency["tpot"]["mean"]))
    return table("memory", "% found", "TTFT ms", "TPOT ms", rows=rows)


def drafts_help_while_there_is_room() -> Rows:
    """Drafts that turn out right come for free while the GPU waits for memory. Verified drafts are rows of the
    batch, and once the batch is large they are no longer free."""
    rows = []
    for clients in (1, 8, 64, 256):
        tpot = []
        for drafts in ({}, {"speculation": "ngram:k=4", "acceptance": "independent:alpha=0.5"}):
            result = servesim.simulate(
                {**SERVER, **drafts},
                trace="synth:rate=1000,prompt=100,output=128",
                requests=2 * clients,
                clients={"max_concurrency": clients},
            )
            tpot.append(result.summary["latency_ms"]["tpot"]["mean"])
        rows.append((clients, tpot[0], tpot[1], tpot[0] / tpot[1]))
    return table("clients", "TPOT ms", "with drafts", "times faster", rows=rows)


def is_the_difference_real() -> Rows:
    """One run is one draw of the traffic. Six paired draws say how sure a difference is, or that six are too few."""
    found = servesim.compare(
        **{**SERVER, "kv": "paged"},
        trace="preset:azure-conv-2023",
        requests=200,
        rate=10,
        scheduler=["vllm", "sarathi"],
        replicates=6,
        metrics="ttft_p99,tpot_p99",
        jobs=1,
    )
    rows = [
        (
            row.variant,
            row.metric,
            f"{row.change:+.1%}",
            f"{row.change_low:+.1%}",
            f"{row.change_high:+.1%}",
            row.verdict,
        )
        for row in found.itertuples()
        if row.verdict != "baseline"
    ]
    return table("scheduler", "metric", "change", "from", "to", "", rows=rows)


LESSONS = (
    decoding_reads_the_weights,
    prompts_are_arithmetic,
    batches_that_wait_and_batches_that_do_not,
    load_and_latency,
    memory_is_the_number_of_places,
    prompts_with_a_common_beginning,
    drafts_help_while_there_is_room,
    is_the_difference_real,
)

if __name__ == "__main__":
    for number, lesson in enumerate(LESSONS, 1):
        if len(sys.argv) == 1 or str(number) in sys.argv[1:]:
            print(f"\n{number}. {lesson.__doc__}\n")
            lesson()
