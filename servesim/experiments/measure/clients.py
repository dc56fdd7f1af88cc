"""Third-party benchmark clients that can run a loop: `aiperf profile` and `vllm bench serve`.

Both draw lengths uniformly from the same range as servesim's client, count prompt tokens with their own tokenizer, and
write a file with every request, which is read into the same kind of answers. The flags and files match AIPerf 0.13
(profile_export.jsonl) and vLLM 0.10 and later (--save-result --save-detailed).
"""

from __future__ import annotations

import asyncio
import math
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servesim.errors import UserError, shown
from servesim.experiments.measure.answers import Answer, Target
from servesim.experiments.measure.loops import SHORTEST, Point
from servesim.experiments.measure.wire import excerpt
from servesim.untrusted import json_value

PROGRAMS = {"aiperf": "aiperf", "vllm-bench": "vllm"}
"""Programs on PATH by client name."""
NAMES = ("own", *PROGRAMS)
MIDDLE = (1 + SHORTEST) / 2
"""Mean of the drawn lengths as a fraction of the nominal length."""
AROUND = (1 - SHORTEST) / (1 + SHORTEST)
"""Maximum deviation of drawn lengths from their mean in either direction, as a fraction of the mean."""
SPARE_S = 180.0
"""Seconds that a client may take beyond its requests, to load and to write its files."""
RECORDS, RESULT = "profile_export.jsonl", "result.json"
METRICS = (
    ("time_to_first_token",),
    ("request_latency",),
    ("usage_prompt_tokens", "input_sequence_length"),
    ("usage_completion_tokens", "output_sequence_length"),
)
"""AIPerf's metrics of a request, with further names in case the server reports no usage."""
COLUMNS = ("input_lens", "output_lens", "ttfts", "itls")
"""Lists in a result of vLLM, with one value per request."""
MOST_FILE = 1 << 28
"""Maximum size in bytes of a result file that is read."""
_MS = 1e6


@dataclass(frozen=True)
class Client:
    """Installed benchmark client."""

    name: str
    program: str
    """Path of the program."""
    tokenizer: str
    """Hugging Face name or folder of the tokenizer used to build prompts."""
    key: str | None = None
    """API key of the server."""

    @classmethod
    def find(cls, name: str, tokenizer: str, key: str | None = None) -> Client:
        """Return the client of this name. Raise UserError if its program is not on PATH or would expose the key to
        others."""
        program = shutil.which(PROGRAMS[name])
        if program is None:
            raise UserError(f"--client {name}: {PROGRAMS[name]} is not on PATH (--client own needs no installation)")
        if key is not None and name == "aiperf":
            raise UserError(
                "--client aiperf would put the key on a command line that others can read. Use --client own."
            )
        return cls(name, program, tokenizer, key)

    def command(self, target: Target, point: Point, seed: int, seconds: float, folder: Path) -> list[str]:
        """Return the command that runs a loop and leaves its result file in a folder."""
        prompt, output = (str(max(round(MIDDLE * length), 1)) for length in (point.prompt, point.output))
        clients, requests = str(point.clients), str(point.requests)
        if self.name == "aiperf":
            kind, timeout = "chat" if target.chat else "completions", f"{target.timeout_s:.3f}"
            return [
                *(self.program, "profile", "--model", target.model, "--url", str(target.address)),
                *("--endpoint-type", kind, "--streaming", "--tokenizer", self.tokenizer, "--use-server-token-count"),
                *("--use-legacy-max-tokens", "--extra-inputs", "ignore_eos:true", "--extra-inputs", "temperature:0"),
                *("--concurrency", clients, "--request-count", requests),
                *("--num-dataset-entries", requests, "--random-seed", str(seed)),
                *("--isl", prompt, "--osl", output, "--random-range-ratio", f"{AROUND:.6f}"),
                *("--benchmark-duration", f"{max(seconds, 1.0):.3f}", "--benchmark-grace-period", timeout),
                *("--request-timeout-seconds", timeout, "--output-artifact-dir", str(folder)),
                *("--export-level", "records", "--ui-type", "none", "--no-gpu-telemetry", "--no-server-metrics"),
            ]
        return [
            *(self.program, "bench", "serve", "--backend", "openai-chat" if target.chat else "openai"),
            *("--base-url", str(target.address), "--endpoint", target.path),
            *("--model", self.tokenizer, "--served-model-name", target.model, "--tokenizer", self.tokenizer),
            *("--dataset-name", "random", "--random-input-len", prompt, "--random-output-len", output),
            *("--random-range-ratio", f"{AROUND:.6f}", "--num-prompts", requests, "--ignore-eos"),
            *("--max-concurrency", clients, "--seed", str(seed), "--disable-tqdm"),
            *("--save-result", "--save-detailed", "--result-dir", str(folder), "--result-filename", RESULT),
        ]

    async def loop(self, target: Target, point: Point, seed: int, seconds: float) -> list[Answer]:
        """Return the answers of a point in the order their requests were sent. Raise UserError with a one-line message
        if the client fails or leaves no file in its format. Send no more requests after `seconds` (supported only by
        AIPerf)."""
        with tempfile.TemporaryDirectory(prefix="servesim-measure-") as folder:
            command = self.command(target, point, seed, seconds, Path(folder))
            rounds = math.ceil(point.requests / point.clients)
            await self._run(command, rounds * target.timeout_s + SPARE_S)
            file, read = (RECORDS, aiperf_answers) if self.name == "aiperf" else (RESULT, vllm_bench_answers)
            path = Path(folder) / file
            if not path.is_file():
                raise UserError(f"--client {self.name}: it succeeded but wrote no {file}")
            if path.stat().st_size > MOST_FILE:
                raise UserError(f"--client {self.name}: {file} has more than {MOST_FILE:,} bytes")
            text = path.read_bytes().decode("utf-8", "replace")
        try:
            answers = [*read(text, max(math.floor(SHORTEST * point.output), 1))]
            if not answers:
                raise UserError("it has no requests")
        except UserError as error:
            raise UserError(f"--client {self.name}: {file}: {error}") from None
        return sorted(answers, key=lambda answer: answer.sent_ns)

    async def _run(self, command: Sequence[str], seconds: float) -> None:
        """Run the client to completion. It and its child processes end when this process does."""
        secret = {"OPENAI_API_KEY": self.key} if self.key is not None else {}
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, **secret},
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(seconds):
                said, _ = await process.communicate()
        except TimeoutError:
            raise UserError(f"--client {self.name}: did not finish within {seconds:,.0f} s") from None
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.communicate()  # drains its output so that its pipe is closed
        if process.returncode:
            raise UserError(f"--client {self.name}: exit code {process.returncode}: {_last_words(said)}")


def _last_words(said: bytes) -> str:
    """Return the line of a program's output that describes the failure: the last line that names an error, or else
    the last line."""
    printed = said.decode("utf-8", "replace").splitlines()
    lines = [line for each in printed if (line := each.strip(" │╭╮╰╯─\t\r"))]
    named = [line for line in lines if "error" in line.lower() or line.startswith("Reason")]
    return excerpt((named or lines or [""])[-1])


def aiperf_answers(text: str, asked: int) -> Iterator[Answer]:
    """Read AIPerf's profile_export.jsonl, which has one object per line. `asked` is the minimum number of output tokens
    that a request asked for."""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        where = f"line {number}"
        row = _object(line, where)
        about, metrics, error = row.get("metadata"), row.get("metrics"), row.get("error")
        if not isinstance(about, dict) or not isinstance(metrics, dict):
            raise UserError(f"{where}: not an AIPerf record (metadata and metrics)")
        if about.get("benchmark_phase") not in (None, "profiling"):
            continue
        if error:
            said = error.get("message", error) if isinstance(error, dict) else error
            raise UserError(f"{where}: a request failed: {excerpt(str(said))}")
        start = _number(about.get("request_start_ns"), f"{where}: request_start_ns")
        first, whole, *counts = (_metric(metrics, names, where) for names in METRICS)
        gaps = metrics.get("inter_chunk_latency", {})
        gaps = gaps.get("value") if isinstance(gaps, dict) else None
        chunks = 1 + len(gaps) if isinstance(gaps, list) else round(counts[1])
        yield _answer(where, start, first, whole, counts, chunks, asked)


def vllm_bench_answers(text: str, asked: int) -> Iterator[Answer]:
    """Read the JSON of `vllm bench serve --save-result --save-detailed`. `asked` is the minimum number of output tokens
    that a request asked for. Versions without start_times do not record when requests were sent, so all requests are
    assumed to have been sent at the start."""
    row = _object(text, "the file")
    columns: list[Any] = [row.get(name) for name in COLUMNS]
    for name, column in zip(COLUMNS, columns, strict=True):
        if not isinstance(column, list):
            raise UserError(f"not a result of vllm bench serve --save-detailed: {name} is missing")
    columns.append(row.get("start_times") or [0.0] * len(columns[0]))
    if len({*map(len, columns)}) > 1:
        raise UserError("its lists have different lengths")
    failed, empty = [error for error in row.get("errors") or [] if error], columns[1].count(0)
    if failed or empty:
        said = excerpt(str(failed[0])) if failed else "an answer without tokens"
        raise UserError(f"{len(failed) or empty} requests failed: {said}")
    for i, (prompt, output, ttft, gaps, sent) in enumerate(zip(*columns, strict=True)):
        where = f"request {i}"
        if not isinstance(gaps, list):
            raise UserError(f"{where}: itls is not a list of times")
        start = _number(sent, f"{where}: start") * 1e9
        first = _number(ttft, f"{where}: ttft") * 1e3
        whole = first + sum(_number(gap, f"{where}: itls") for gap in gaps) * 1e3
        counts = [_number(prompt, f"{where}: input_lens"), _number(output, f"{where}: output_lens")]
        yield _answer(where, start, first, whole, counts, 1 + len(gaps), asked)


def _answer(
    where: str, start_ns: float, first_ms: float, whole_ms: float, counts: Sequence[float], chunks: int, asked: int
) -> Answer:
    """Return an answer, or raise UserError if its data are implausible."""
    prompt, output = (round(count) for count in counts)
    if prompt < 1 or output < 1 or not 0 < first_ms <= whole_ms:
        raise UserError(
            f"{where}: {prompt} + {output} tokens, the first after {first_ms:g} of {whole_ms:g} ms: these times are "
            "impossible"
        )
    if output > 1 and chunks == 1:
        raise UserError(
            f"{where}: all {output} tokens arrived in one piece, so the time of the first token is not known"
        )
    start = round(start_ns)
    first, last = start + round(first_ms * _MS), start + round(whole_ms * _MS)
    return Answer(start, first, last, prompt, output, chunks, asked)


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        found = json_value(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UserError(f"{where}: must be a JSON object, not {shown(text.strip()[:60])}")
    return found


def _metric(metrics: Mapping[str, Any], names: Sequence[str], where: str) -> float:
    """Return the value of the first of several metrics that is present. Metrics have AIPerf's form {value, unit}."""
    for name in names:
        if isinstance(metrics.get(name), Mapping):
            return _number(metrics[name].get("value"), f"{where}: {name}: value")
    raise UserError(f"{where}: no {names[-1]}: the server must stream answers and report usage")


def _number(value: Any, where: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise UserError(f"{where} is {shown(str(value))} but must be a number")
    return float(value)
