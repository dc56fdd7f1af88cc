"""Files of tools with any value gone wrong, and texts of any kind: a result or one UserError, nothing else."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from servesim.experiments.recording_formats import read_folder
from servesim.run.serve_command import served
from servesim.traces import load_trace
from tests.property.test_untrusted_input import ODD, one_line_or_result

NS = 1_795_183_201_194_322_176
METRICS = {
    "input_sequence_length": {"value": 5, "unit": "tokens"},
    "output_sequence_length": {"value": 5, "unit": "tokens"},
    "time_to_first_token": {"value": 0.5, "unit": "ms"},
    "request_latency": {"value": 9.0, "unit": "ms"},
}
REQUEST = {"prompt_tokens": 5, "output_tokens": 5, "request_start_time": 1.5, "request_end_time": 2.5}
GENAI = {"timestamp": NS, "request_inputs": {"payload": "{}"}, "response_timestamps": [NS + 1, NS + 2]}
SPAN = {
    "traceId": "a",
    "spanId": "b",
    "startTimeUnixNano": str(NS),
    "endTimeUnixNano": str(NS + 5),
    "attributes": [
        {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "5"}},
        {"key": "gen_ai.usage.output_tokens", "value": {"intValue": "5"}},
    ],
}
DOCUMENTS: dict[str, Any] = {
    "aiperf": {"metadata": {"request_start_ns": NS, "turn_index": 1, "conversation_id": "c"}, "metrics": METRICS},
    "guidellm": {"benchmarks": [{"requests": {"successful": [REQUEST], "errored": []}}]},
    "inference-perf": [{"start_time": 1.0, "end_time": 2.0, "info": {"input_tokens": 5, "response_metrics":
                        {"output_tokens": 5, "output_token_times": [1.5, 2.0]}}, "error": None}],
    "genai-perf": {"experiments": [{"experiment": {"mode": "concurrency", "value": 2}, "requests": [GENAI]}]},
    "otlp": {"resourceSpans": [{"scopeSpans": [{"spans": [SPAN]}]}]},
    "log": {"data": [{"ts": 5, "usage": {"prompt_tokens": 5, "completion_tokens": 5}, "latency_ms": 4, "status": 200,
                      "session_id": "s"}] * 2},
}  # fmt: skip


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The ways to every value within a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at] * bool(at) + [way for key, part in inner for way in places(part, (*at, key))]


def changed(document: Any, way: tuple[Any, ...], value: Any) -> Any:
    """A copy of a document with another value in one place, where that is there still."""
    found = copy.deepcopy(document)
    part = found
    try:
        for key in way[:-1]:
            part = part[key]
        part[way[-1]] = value
    except (KeyError, IndexError, TypeError):
        pass
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("input") / "x.json"


CHECKED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@CHECKED
@given(name=st.sampled_from(sorted(DOCUMENTS)), draw=st.data())
def test_documents_of_tools_with_odd_values(name: str, draw: st.DataObject, place: Path) -> None:
    document = DOCUMENTS[name]
    for way in draw.draw(st.lists(st.sampled_from(places(document)), min_size=1, max_size=3)):
        document = changed(document, way, draw.draw(ODD))
    place.write_text(json.dumps(document))
    one_line_or_result(load_trace, place)
    one_line_or_result(load_trace, place, name if name != "otlp" else "otel")
    one_line_or_result(read_folder, place)


CELLS = st.sampled_from(
    ["5", "-1", "", "nan", "inf", "1e400", "1.5", "2026-11-20T14:00:01Z", "x", "9" * 30, '"', "1,5", "true"]
)
NAMES = st.sampled_from(
    [
        "timestamp",
        "prompt_tokens",
        "completion_tokens",
        "latency_ms",
        "status",
        "session_id",
        "id",
        "total_tokens",
        "ttft",
        "x",
    ]
)


@CHECKED
@given(
    header=st.lists(NAMES, min_size=1, max_size=6),
    rows=st.lists(st.lists(CELLS, min_size=1, max_size=6), max_size=4),
    separator=st.sampled_from(",;\t|"),
    columns=st.sampled_from([None, "arrival=timestamp,prompt=x", "prompt=5,output=5", "unit=us", "arrival=", "end=id"]),
)
def test_logs_with_odd_cells(
    header: list[str], rows: list[list[str]], separator: str, columns: str | None, place: Path
) -> None:
    place.write_text("\n".join(separator.join(row) for row in [header, *rows]) + "\n")
    one_line_or_result(load_trace, place, **({"columns": columns} if columns else {}))
    one_line_or_result(read_folder, place)


@CHECKED
@given(text=st.text("arivlpomt=,'\"x2 ", max_size=30))
def test_columns_of_any_text(text: str, place: Path) -> None:
    place.write_text("timestamp,prompt_tokens,completion_tokens\n1,2,3\n")
    one_line_or_result(load_trace, place, columns=text or "x")


LINES = st.sampled_from(["vllm:request_prompt_tokens", "vllm:request_generation_tokens", "x"])
VALUES = st.sampled_from(["5", "9.0", "nan", "-1", "x", "1e300", "0", "+Inf"])


@CHECKED
@given(
    lines=st.lists(st.tuples(LINES, st.sampled_from(["1", "128.0", "+Inf", "nan", "x", "1e300"]), VALUES), max_size=8)
)
def test_histograms_with_odd_numbers(lines: list[tuple[str, str, str]], place: Path) -> None:
    text = "".join(f'{name}_bucket{{le="{edge}"}} {value}\n{name}_sum {value}\n' for name, edge, value in lines)
    place.write_text(text or "x_bucket{le=\n")
    one_line_or_result(load_trace, place, "prometheus")


WORDS = st.sampled_from(
    [
        "vllm",
        "serve",
        "trtllm-serve",
        "sglang.launch_server",
        "-m",
        "python3",
        "A=1",
        "meta-llama/Llama-3.1-8B",
        "--tp",
        "-tp",
        "2",
        "-1",
        "--max-num-seqs",
        "32k",
        "--speculative-config",
        "{}",
        '\'{"method": "ngram"}\'',
        "--config",
        "/nowhere",
        "--dtype=fp8",
        "--",
        "'",
        "-",
        "--ep-size",
        "\\\n",
        "--=",
        "@x",
    ]
)


@CHECKED
@given(words=st.lists(WORDS, max_size=8))
def test_commands_of_any_words(words: list[str]) -> None:
    one_line_or_result(served, " ".join(words))
