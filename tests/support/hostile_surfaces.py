"""Hostile commands of clusters, of the explorer and of what measures: settings and files that none of them may take.

`python -m tests.support.hostile_surfaces` runs each in a process of its own and prints what was not exit 2, one line, 2
seconds and a gigabyte, with nothing left behind.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.support.hostile import run_alone

SYNTH = "synth:rate=20,prompt=30,output=2"
SMALL = ("--trace", SYNTH, "--requests", "3", "--model", "llama-3.2-1b", "--gpu", "h200")
RUN = ("run", *SMALL, "--out", "{}/out")
MIXED = ("run", "--trace", SYNTH, "--requests", "3", "--model", "qwen3-30b-a3b", "--gpu", "h200", "--out", "{}/out")
EXPLORE = ("explore", "--port", "0", *SMALL)
WORTH = ("worth", *SMALL, "--slo", "ttft:500", "--jobs", "1", "--out", "{}/out")
MEASURE = ("measure", "http://127.0.0.1:9", "--gpu", "h100", "--out", "{}/out")
INSPECT = ("trace", "inspect", SYNTH, "--requests", "9")
HUGE = "9" * 400
HEAD = "trace: synth:rate=20,prompt=30,output=2\nrequests: 3\nmodel: llama-3.2-1b\ngpu: h200\n"


class Hostile(NamedTuple):
    """A command, `{}` for the folder it runs in, and the file `x.yaml` that lies there (empty: none)."""

    arguments: tuple[str, ...]
    file: str = ""


def _each(start: tuple[str, ...], option: str, *values: str) -> list[Hostile]:
    return [Hostile((*start, option, value)) for value in values]


def _scenarios(command: tuple[str, ...], *tails: str) -> list[Hostile]:
    return [Hostile(command, HEAD + tail + "\n") for tail in tails]


_FILE = ("run", "{}/x.yaml", "--out", "{}/out")
_CRASH = "crash:replica=0,at=1"

COMMANDS: dict[str, list[Hostile]] = {
    "pools": [
        *_each(RUN, "--pools", "", ":", "a:b", "a:gpu=", "a:gpu=h200,gpu=h100", "a:replicas=0", "a:replicas=-1",
               "a:replicas=1.5", "a:replicas=nan", f"a:replicas={HUGE}", "a:replicas=1000000000", "a:tp=0", "a:tp=3",
               "a:tp=9223372036854775808", "a:role=king", "a:role=prefill", "a:role=decode", "a:trace=x", "a:router=x",
               "a:model=none-such", "a:engine=5", "a:engine.block_size=0", "a:pools=x", "a:scaler=hpa,replicas=99",
               "\x1b[31m:tp=1", "a" * 5_000 + ":x=1", "a:start.node_s=5"),
        *_scenarios(_FILE, "pools: ''", "pools: 5", "pools: {a: {tp: 1}}", "pools: [5]", "pools: [[]]", "pools: [{}]",
                    "pools: [null]", "pools: [{name: a}, {name: a}]", "pools: [{name: a, tp: [1, 2]}]",
                    "pools: [{name: a, name: b}]", "pools: [{name: a, replicas: .nan}]", "pools: &p [{name: a, x: *p}]",
                    "pools: [{name: a, role: [both]}]", "pools: [{name: a, role: {}}]", "pools: [{name: a, 5: 6}]",
                    "pools: [{name: a, replicas: true}]", "pools: [{name: a, engine: [1]}]",
                    "pools: [{name: a, gpu: 7}]",
                    "pools: [{name: a, engine: {nothing: 1}}]", "pools: [{name: a, scheduler: {}}]",
                    "pools: [{name: a, scheduler: 5}]", "pools: [{name: a, 2020-01-01: 1}]", "pools: [{? [a] : 1}]",
                    "pools: [{name: a, replicas: 1e400}]", f"pools: [{{name: a, tp: {HUGE}}}]",
                    "pools: [{name: a, model: {}}]", "pools: [{name: a, price: [1]}]",
                    f"pools: [{{name: a, price: {{h200: {HUGE}}}}}]",
                    "pools: [{name: a, usd_per_gpu_hour: -1}]", "pools: [{name: a, start: 5}]",
                    "pools: [{name: a, start: {node_s: x}}]", "pools: [{name: a, scaler: 5}]",
                    "pools: [{name: a}", "pools:\n  - name: a\n - name: b"),
    ],
    "prompts and answers apart": [
        *_each(RUN, "--pd", "", "1", "1x1", "0x1:1x1", "1x0:1x1", "1x1:0x1", "-1x1:1x1", "1.5x1:1x1", "1x1:1x1:1x1",
               "1x3:1x1", f"{HUGE}x1:1x1", "1000000000x1:1x1", "1x99999:1x1", "²x1:1x1", "nan"),
        *_each((*RUN, "--pd", "1x1:1x1"), "--handoff", "", "none-such", "vllm-nixl:link=carrier-pigeon",
               "vllm-nixl:gb_s=0", "vllm-nixl:gb_s=nan", "vllm-nixl:gb_s=-1", "vllm-nixl:gb_s=1e-300",
               "vllm-nixl:gb_s=1e300", "vllm-nixl:start_us=inf", "vllm-nixl:start_us=1e300", "vllm-nixl:start_us=-1",
               "vllm-nixl:http_ms=nan", "vllm-nixl:http_ms=-1", "vllm-nixl:http_ms=1e300", "vllm-nixl:lease_s=-1",
               "vllm-nixl:lease_s=nan", "vllm-nixl:lease_s=1e300", f"vllm-nixl:message_overhead_bytes={HUGE}",
               "vllm-nixl:kv_load_failure_policy=pray", "vllm-nixl:nothing=1", "vllm-nixl:link=rdma-200,link=nvlink"),
        Hostile((*RUN, "--handoff", "vllm-nixl")), Hostile((*RUN, "--pd", "1x1:1x1", "--pools", "a:tp=1")),
        Hostile((*RUN, "--pd", "1x1:1x1", "--dp", "2")), Hostile((*RUN, "--pd", "1x1:1x1", "--stream")),
        *_scenarios(_FILE, "pd: [1, 2]", "pd: {a: 1}", "pd: 5", "pd: 2020-01-01", "pd: 1x1:1x1\nhandoff: 5",
                    "pd: 1x1:1x1\nhandoff: [a]", "pd: 1x1:1x1\nhandoff: {}", "pd: 1x1:1x1\nhandoff: {name: [1]}",
                    "pd: 1x1:1x1\nhandoff: {name: vllm-nixl, link: 5}",
                    "pd: 1x1:1x1\nhandoff: {name: vllm-nixl, link: []}"),
    ],
    "scaling": [
        *_each(RUN, "--scaler", "", "none-such", "hpa:min=-1", "hpa:max=0", "hpa:min=9,max=2", "hpa:target=0",
               "hpa:target=nan", "hpa:target=-1", "hpa:sync_s=1e-12", "keda:polling_s=1e300", f"hpa:max={HUGE}",
               "hpa:min=0.5", "hpa:metric=x",
               "hpa:min=2,max=4", "keda:target=inf", "keda:min=0,max=0", "keda:nothing=1", "dynamo-planner:ttft_ms=-1",
               "dynamo-planner:loops=none", "dynamo-planner:predictor=oracle", "dynamo-planner:ttft_ms=nan",
               "llm-d-wva:min=nan", "hpa:every_s=0", "keda:every_s=-5", "{}/missing.py:Class", "{}/x.yaml:Class"),
        *_each((*RUN, "--scaler", "hpa"), "--start", "", "node_s=-1", "node_s=nan", "node_s=inf", "weights_gb_s=0",
               "weights_gb_s=1e-300", "nothing=1", "node_s=1,node_s=2", f"pull_s={HUGE}", "node_s=x"),
        Hostile((*RUN, "--start", "node_s=5")),
        Hostile((*MIXED, "--scaler", "hpa", "--dp", "2")),
        *_scenarios(_FILE, "scaler: 5", "scaler: []", "scaler: {}", "scaler: {name: 5}",
        "scaler: {name: hpa, min: null}",
                    "scaler: {name: hpa, min: true}", "scaler: {name: hpa, target: [1]}", "scaler: hpa\nstart: 5",
                    "scaler: hpa\nstart: [1]", "scaler: hpa\nstart: {node_s: null}", "scaler: hpa\nstart: {5: 5}",
                    "scaler: {name: hpa, name: keda}", "scaler: hpa\nstart: {node_s: true}"),
    ],
    "failures": [
        *_each(RUN, "--cluster.failures", "", "crash", "crash:", "burn:replica=0", "crash:replica=0", "crash:at=1",
               "crash:replica=1,at=1", "crash:replica=-1,at=1", "crash:replica=0.5,at=1", "crash:replica=nan,at=1",
               "crash:replica=0,at=-1", "crash:replica=0,at=nan", "crash:replica=0,at=1e300",
               "crash:replica=0,at=1,at=2",
               "crash:replica=0,at=1,restart=-1", "crash:replica=0,at=1,restart=inf", "crash:replica=0,at=1,factor=2",
               "slow:replica=0,at=1", "slow:replica=0,at=1,until=1,factor=2", "slow:replica=0,at=1,until=0,factor=2",
               "slow:replica=0,at=1,until=2,factor=0", "slow:replica=0,at=1,until=2,factor=-1",
               "slow:replica=0,at=1,until=2,factor=1e300", "crash:node=1,at=1", "crash:node=-1,at=1",
               "crash:node=0,replica=0,at=1", f"crash:node={HUGE},at=1", "slow:node=x,at=1,until=2,factor=2",
               "slow_net:factor=2,at=0,until=1", "slow_net:factor=nan,at=0,until=1", "upgrade", "upgrade:",
               "upgrade:at=1,batch=0", f"upgrade:at=1,batch={HUGE}", "upgrade:at=1,surge=2", "upgrade:at=1,grace=-1",
               "upgrade:at=1,pool=x", "upgrade:at=1,gpu=x", "upgrade:at=1,startup=nan",
               f"crash:replica={HUGE},at=1", "crash:replica=true,at=1"),
        *_each((*RUN, "--cluster.failures", _CRASH), "--cluster.gpus-per-node", "0", "-1", "1.5", HUGE),
        *_each((*RUN, "--cluster.failures", _CRASH), "--cluster.detection-s", "-1", "nan", "1e300", "x"),
        *_each((*RUN, "--cluster.failures", _CRASH), "--cluster.reroutes", "-1", "1.5", HUGE, "true"),
        *_each((*RUN, "--cluster.failures", _CRASH), "--cluster.migrations", "-1", "1.5", HUGE),
        Hostile((*RUN, "--pd", "1x1:1x1", "--cluster.failures", "add:at=0")),
        *_each((*RUN, "--cluster.failures", _CRASH), "--cluster.reroute-delay-s", "-1", "inf", "1e300"),
        *_each(RUN, "--cluster.report-every-s", "-1", "nan", "1e300"), *_each(RUN, "--cluster.report-lag-s", "-1",
        "inf"),
        *_scenarios(_FILE, "cluster: 5", "cluster: []", "cluster: {failures: 5}", "cluster: {failures: [5]}",
                    "cluster: {failures: [[]]}", "cluster: {failures: {a: b}}", "cluster: {failures: [null]}",
                    "cluster: {failures: [{crash: {replica: 0, at: 1}}]}", "cluster: {nothing: 1}",
                    "cluster: {detection_s: [1]}", "cluster: {reroutes: null}"),
    ],
    "ranks": [
        *_each(MIXED, "--dp", "", "0", "-1", "1.5", "nan", "true", HUGE, "1000000000", "100000"),
        *_each((*MIXED, "--dp", "2"), "--ep", "0", "-1", "3", "nan", HUGE), *_each(MIXED, "--ep", "2", "1.5"),
        *_each((*MIXED, "--dp", "2"), "--engine.expert-skew", "-1", "nan", "1e300", "x"),
        *_each((*MIXED, "--dp", "2"), "--engine.num-redundant-experts", "-1", "1", HUGE),
        *_each((*MIXED, "--dp", "2", "--engine.enable-eplb", "true"), "--engine.num-redundant-experts", HUGE, "100000"),
        *_each((*MIXED, "--dp", "2"), "--engine.all2all-backend", "", "pigeon"),
        Hostile((*MIXED, "--dp", "2", "--pp", "2")), Hostile((*MIXED, "--dp", "2", "--cluster.failures", _CRASH)),
        Hostile((*RUN, "--dp", "2", "--speculation", "ngram")), Hostile((*RUN, "--ep", "2")),
        *_scenarios(_FILE, "dp: [1]", "dp: {}", "dp: true", "dp: 2020-01-01", "ep: []", "ep: x", "dp: 1e300"),
    ],
    "shapes": [
        *_each(INSPECT, "--shape", "", ":", "none-such", "thin", "thin:keep=2", "thin:keep=nan", "thin:keep=0",
               "thin:keep=-1", "window:start=5,end=1", "window:start=nan", "window:start=1e300,end=2e300",
               "repeat:times=0", "repeat:times=1000000000", "repeat:times=-1", "ramp:start=0,end=0",
               "ramp:start=-1,end=1",
               "stretch:factor=0", "stretch:factor=-1", "stretch:factor=nan", "arrive:rate=0", "arrive:rate=-1",
               "arrive:rate=inf,cv=1", "cap:tokens=0", "cap:tokens=nan", "label:share=nan", "cancel:share=2,after=1",
               "thin:keep=0.5,nothing=1", "thin:keep=0.5,keep=0.4", f"repeat:times={HUGE}"),
        *_scenarios(_FILE, "shape: 5", "shape: {}", "shape: [5]", "shape: [[]]", "shape: [null]", "shape: &a [*a]",
                    "shape: [{thin: {keep: 2}}]", "shape: [{name: thin, keep: [1]}]", "shape: [true]"),
    ],
    "explore": [
        Hostile(("explore", "{}/missing.yaml")), Hostile(("explore", "{}")), Hostile(("explore", "/dev/zero")),
        Hostile(("explore", "/dev/null", "--port", "0")), *_each(EXPLORE[:1], "--port", "-1", "65536", "nan", "", "x"),
        *_each(EXPLORE, "--rate", "0", "-1", "nan", ""), *_each(EXPLORE, "--requests", "0", "-1", HUGE),
        *_each(EXPLORE, "--stream", "true"), *_each(EXPLORE, "--gpu", "", "none-such"), *_each(EXPLORE, "--tp", "0",
        "2,4"),
        *_each(EXPLORE, "--set", "nothing=1", "=", "seed=[1,2]"),
        *_each(EXPLORE, "--pools", "a:replicas=0"), *_each(EXPLORE, "--pd", "0x1:1x1"),
        *(Hostile(("explore", "{}/x.yaml", "--port", "0"), text) for text in (
            "5\n", "[]\n", "a: 1\na: 2\n", "[" * 5_000, "\x00", "trace: &a [*a]\n", HEAD + "slo: {ttft: .nan}\n",
            HEAD + "gpu: h100\n", HEAD + "tp: [1, 2]\n", HEAD + "pools: 5\n", HEAD + "slo: [1]\n", "model: 5\n",
        )),
    ],
    "worth": [
        *_each(WORTH, "--of", "", ",", "none-such", "fp8,fp8", "tp=0", "tp=", "tp=1,2", "tp=nan", f"tp={HUGE}", "=5",
               "replicas=0", "seed=x", "model=none-such", "gpu=", "fp8,", "speculation=none-such", "trace=/dev/zero",
               "scheduler.max_num_seqs=true", "tp=1", "pools=5", "pools=[5]", "pd=0x1:1x1", "dp=0",
               "cluster.failures=5", "shape=5", "scaler=5", "slo=5", "engine.block_size=-1", "{}/x.py:Class"),
        Hostile(WORTH), *_each((*WORTH, "--of", "fp8"), "--rate", "0", "-1", "nan", "inf", "1,2"),
        *_each((*WORTH, "--of", "fp8"), "--gpu", "h100,h200", ""), *_each((*WORTH, "--of", "fp8"), "--replicates", "0",
        "-1"),
        Hostile(("worth", *SMALL, "--of", "fp8", "--out", "{}/out")), Hostile((*WORTH, "--of", "fp8", "--slo",
        "ttft:nan")),
        *(Hostile(("worth", "{}/x.yaml", "--of", "fp8", "--slo", "ttft:500"), text) for text in (
            "5\n", "a: 1\na: 2\n", "[" * 5_000, HEAD + "pools: 5\n", HEAD + "tp: [1, 2]\n", HEAD + "dp: 0\n",
        )),
    ],
    "measure": [
        *(Hostile(("measure", url, "--gpu", "h100", "--out", "{}/out")) for url in (
            "", "localhost", "ftp://localhost", "http://", "http://[", "http://localhost:99999", "http://localhost:x",
            "http://a b", "http://\x1b[31m", "file:///etc/passwd", "http://user:secret@localhost",
            "http://localhost:-1",
            "http://127.0.0.1:9", "http://" + "x" * 5_000, "http://none-such.invalid", "http://localhost/?a=b",
            "http://\u00e9\u00e9..",
        )),
        *_each(MEASURE, "--tp", "0", "nan", HUGE), *_each(MEASURE, "--dtype", "fp99", ""), *_each(MEASURE, "--minutes",
        "0", "nan", "-1", "inf"),
        *_each(MEASURE, "--idle", "", "0", "1,,2", "x", "-5", HUGE, "5,5"), *_each(MEASURE, "--clients", "", "0",
        "nan", "1000000000"),
        *_each(MEASURE, "--timeout", "0", "nan", "-1"), *_each(MEASURE, "--client", "", "curl"), *_each(MEASURE,
        "--repeats", "0", HUGE),
        *_each(MEASURE, "--key-variable", "", "NOT_SET_ANYWHERE", "A=B"), *_each(MEASURE, "--log", "{}/missing", "{}",
        "/dev/zero"),
        *_each(MEASURE, "--flags", "", "rm -rf", "vllm serve 'x", "@{}/missing", "vllm serve x -tp nan"),
        *_each(MEASURE, "--tokenizer", "x"), *_each(MEASURE, "--output", "1"), *_each(MEASURE[:2], "--gpu",
        "none-such"),
        Hostile(("measure", "http://127.0.0.1:9", "--gpu", "h100", "--out", "/dev/null/x")), *_each(MEASURE,
        "--prompt", "0", HUGE),
        Hostile(("measure", "http://127.0.0.1:9", "--gpu", "{}/x.yaml", "--out", "{}/out"), "[" * 5_000),
        Hostile(("measure", "http://127.0.0.1:9", "--gpu", "h100", "--out", "{}/out", "--log", "{}/x.yaml"),
        "\x00\xff" * 999),
        Hostile(("measure", "http://127.0.0.1:9", "--gpu", "h100", "--out", "{}/out", "--log", "{}/x.yaml"),
        "x" * 10_000_000),
    ],
}  # fmt: skip
"""Commands by what they attack."""


def every() -> Iterator[tuple[str, int, Hostile]]:
    """Yield all of them, with the name of what is attacked and their number there."""
    for name, commands in COMMANDS.items():
        for number, hostile in enumerate(commands):
            yield name, number, hostile


def wrong(hostile: Hostile, folder: Path) -> tuple[str, float, int]:
    """Run a command in an empty folder. Return what is wrong (empty: nothing), the seconds of the processor and MiB."""
    place = folder / "in"
    place.mkdir(parents=True)
    if hostile.file:
        (place / "x.yaml").write_text(hostile.file, encoding="utf-8", errors="surrogatepass")
    return run_alone([each.replace("{}", str(place)) for each in hostile.arguments], place)


def main() -> None:
    """Run all, or those of the names given, and print what is wrong."""
    import servesim.cli.app

    assert servesim.cli.app.app
    faults = done = 0
    slowest, largest = 0.0, 0
    for name, number, hostile in every():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            told, took, mib = wrong(hostile, Path(scratch))
        done, slowest, largest = done + 1, max(slowest, took), max(largest, mib)
        if told:
            faults += 1
            print(f"{name} {number}: {told}: {' '.join(hostile.arguments)[:200]!r} {hostile.file[:90]!r}", flush=True)
    print(f"{done} commands: {faults} wrong; {slowest:.2f} CPU s and {largest} MiB at most")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
