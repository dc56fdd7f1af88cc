"""A real Prometheus scrapes a live server: vLLM's published dashboards find their series, and what it answers is what
the offline run of the recording says."""

from __future__ import annotations

import random
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import servesim
from benchmarks.live_client import Load
from benchmarks.live_server import send, server
from tests.live.dashboards import EXPRESSIONS

pytestmark = pytest.mark.live
BLOCKS = 100
"""Few enough for preemptions."""
COUNT, PER_S, OUTPUT = 200, 8, 120
WINDOW_S = 15
VARIABLES = {"$__rate_interval": f"{WINDOW_S}s", "$job": ".*", "$instance": ".*", "$engine": ".*"}
QUANTILES = {"time_to_first_token": "ttft_ns", "e2e_request_latency": "e2el_ns", "request_queue_time": "queue_time_ns"}
"""Columns of the offline run by the name of the metric."""


class Prometheus:
    """A Prometheus that scrapes one server every second."""

    def __init__(self, client: httpx.Client, model: str) -> None:
        self._client, self._model = client, model

    def ready(self) -> bool:
        try:
            return self._client.get("/-/ready").status_code == 200
        except httpx.HTTPError:
            return False

    def ask(self, expression: str) -> list[float]:
        """Return the values of an expression now, with a dashboard's variables in it."""
        for variable, value in {**VARIABLES, "$model_name": self._model}.items():
            expression = expression.replace(variable, value)
        answer = self._client.get("/api/v1/query", params={"query": expression}).json()
        assert answer["status"] == "success", answer
        return [float(each["value"][1]) for each in answer["data"]["result"]]

    def one(self, expression: str) -> float:
        (value,) = self.ask(expression)
        return value


@contextmanager
def prometheus(program: str, target: str, model: str, folder: Path) -> Iterator[Prometheus]:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    config = folder / "prometheus.yaml"
    config.write_text(
        "global: {scrape_interval: 1s}\n"
        f"scrape_configs: [{{job_name: servesim, static_configs: [{{targets: ['{target}']}}]}}]\n"
    )
    flags = [f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}"]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen([program, *flags, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
                made = Prometheus(client, model)
                until = time.monotonic() + 60
                while not made.ready():
                    assert time.monotonic() < until, (folder / "prometheus.log").read_text()[-2000:]
                    time.sleep(0.5)
                yield made
        finally:
            process.terminate()
            process.wait(30)


def prompts() -> list[str]:
    """Return texts that begin alike."""
    draw = random.Random(3)

    def words(count: int) -> str:
        return " ".join("".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=4)) for _ in range(count))

    common = words(128)
    return [f"{common} {words(128)}" for _ in range(COUNT)]


@dataclass
class Seen:
    """What a Prometheus answered at the end of a load, and the offline run of the recording."""

    answers: dict[str, list[float]]
    """Values of the expressions of dashboards while the load was there."""
    totals: dict[str, float]
    quantiles: dict[tuple[str, float], float]
    buckets: dict[str, list[float]]
    rate: float
    """Tokens a second in the last WINDOW_S of the load."""
    result: Any


@pytest.fixture(scope="module")
def seen(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    inside = environment / "prometheus" / "usr" / "bin" / "prometheus"
    program = str(inside) if inside.exists() else shutil.which("prometheus")
    if program is None:
        pytest.skip("there is no Prometheus: neither apt-get nor PATH has one")
    folder = tmp_path_factory.mktemp("prometheus")
    record = folder / "seen.jsonl"
    flags = ["--model=llama-3.1-8b", "--gpu=h100", f"--set=engine.num_gpu_blocks={BLOCKS}", f"--record={record}"]
    with server(flags) as running:
        if httpx.get(f"{running.url}/metrics").status_code == 404:
            pytest.skip("this server has no /metrics")
        with prometheus(program, running.url.removeprefix("http://"), running.model, folder) as asked:
            send(Load(running.port, requests=COUNT, rate=PER_S, texts=prompts(), output=OUTPUT))
            answers = {expression: asked.ask(expression) for expression in EXPRESSIONS}
            rate = asked.one(f"sum(rate(vllm:generation_tokens_total[{WINDOW_S}s]))")
            time.sleep(2.5)  # for the last scrape
            names = (
                "prompt_tokens",
                "generation_tokens",
                "prefix_cache_hits",
                "prefix_cache_queries",
                "num_preemptions",
            )
            totals = {name: asked.one(f"sum(vllm:{name}_total)") for name in names}
            totals["finished"] = asked.one('sum(vllm:request_success_total{finished_reason="length"})')
            bucket = "histogram_quantile({}, sum by(le) (vllm:{}_seconds_bucket))"
            quantiles = {(name, q): asked.one(bucket.format(q, name)) for name in QUANTILES for q in (0.5, 0.9)}
        page = httpx.get(f"{running.url}/metrics").text.splitlines()
        running.stop()
    buckets = {
        name: sorted({_le(line) for line in page if line.startswith(f"vllm:{name}_seconds_bucket")})
        for name in QUANTILES
    }
    result = servesim.simulate(
        trace=str(record), model="llama-3.1-8b", gpu="h100", num_gpu_blocks=BLOCKS, intervals=False
    )
    return Seen(answers, totals, quantiles, buckets, rate, result)


def _le(line: str) -> float:
    return float(line.partition('le="')[2].partition('"')[0])


def test_every_expression_of_a_dashboard_returns_a_series(seen: Seen) -> None:
    assert [expression for expression, values in seen.answers.items() if not values] == []
    assert [expression for expression, values in seen.answers.items() if not np.isfinite(values).any()] == []


def test_counters_are_those_of_the_offline_run(seen: Seen) -> None:
    summary, requests = seen.result.summary, seen.result.requests
    assert seen.totals["finished"] == summary["requests"]["completed"] == COUNT
    assert seen.totals["prompt_tokens"] == summary["requests"]["input_tokens"]
    assert seen.totals["generation_tokens"] == summary["requests"]["output_tokens"]
    assert seen.totals["prefix_cache_hits"] == summary["prefix_cache"]["hit_tokens"] > 0
    assert seen.totals["prefix_cache_queries"] == summary["prefix_cache"]["queried_tokens"]
    assert seen.totals["num_preemptions"] == requests.num_preemptions.sum() > 0


def test_the_rate_of_tokens_is_that_of_the_offline_run(seen: Seen) -> None:
    requests = seen.result.requests
    assert seen.rate == pytest.approx(requests.output_len.sum() / (requests.finished_ns.max() / 1e9), rel=0.25)


@pytest.mark.parametrize("q", [0.5, 0.9])
@pytest.mark.parametrize("name", QUANTILES)
def test_a_latency_quantile_is_in_the_bucket_of_the_offline_runs(seen: Seen, name: str, q: float) -> None:
    true = float(np.quantile(seen.result.requests[QUANTILES[name]], q, method="inverted_cdf")) / 1e9
    edges = [0.0, *seen.buckets[name]]
    above = next(number for number, edge in enumerate(edges) if edge >= true)
    assert edges[above - 1] <= seen.quantiles[name, q] <= edges[above]
