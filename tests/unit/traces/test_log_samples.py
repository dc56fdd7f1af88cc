"""A little of what common tools export: each is read rightly, or refused in one line that says what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from servesim.errors import UserError
from servesim.traces import load_trace

PROMPTS, OUTPUTS, GAP_NS = [1200, 800], [300, 100], 2_000_000_000
START, END = ("2026-11-20T14:00:01.194Z", "2026-11-20T14:00:03.194Z"), ("2026-11-20T14:00:02Z", "2026-11-20T14:00:04Z")
LONGEST = 400


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def as_csv(*rows: dict[str, Any], separator: str = ",") -> str:
    import csv
    import io

    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), delimiter=separator, lineterminator="\n")
    writer.writeheader()
    writer.writerows([{k: json.dumps(v) if isinstance(v, dict | list) else v for k, v in row.items()} for row in rows])
    return text.getvalue()


def each(make: Any) -> list[dict[str, Any]]:
    return [make(i, PROMPTS[i], OUTPUTS[i]) for i in range(2)]


def litellm(i: int, prompt: int, output: int) -> dict[str, Any]:
    usage = {"prompt_tokens": prompt, "completion_tokens": output, "cache_read_input_tokens": 64}
    return {
        "request_id": f"r{i}",
        "call_type": "acompletion",
        "spend": 0.01,
        "total_tokens": prompt + output,
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "startTime": START[i],
        "endTime": END[i],
        "completionStartTime": START[i],
        "model": "m",
        "user": "u",
        "metadata": {"user_api_key": "k", "usage_object": usage},
        "status": "success",
    }


def litellm_payload(i: int, prompt: int, output: int) -> dict[str, Any]:
    row = litellm(i, prompt, output)
    times = {"startTime": 1763647201.194 + 2 * i, "endTime": 1763647202.2 + 2 * i, "completionStartTime": 1763647202.0}
    return {**row, **times, "response_time": 0.3, "messages": [{"role": "user", "content": "hi"}]}


def langfuse(i: int, prompt: int, output: int) -> dict[str, Any]:
    details = {"input": prompt - 200, "input_cached_tokens": 200, "output": output - 50, "output_reasoning_tokens": 50}
    return {
        "id": f"o{i}",
        "traceId": f"t{i}",
        "type": "GENERATION",
        "startTime": START[i].replace("T", " ").rstrip("Z"),
        "endTime": END[i].replace("T", " ").rstrip("Z"),
        "latency": 1.0,
        "timeToFirstToken": 0.3,
        "input": [{"role": "user", "content": "hi, there"}],
        "output": {"role": "assistant", "content": "hello"},
        "usageDetails": {**details, "total": prompt + output},
        "costDetails": {"input": 0.01, "output": 0.02, "total": 0.03},
        "model": "m",
    }


def langfuse_snake(i: int, prompt: int, output: int) -> dict[str, Any]:
    row = langfuse(i, prompt, output)
    names = {"startTime": "start_time", "endTime": "end_time", "usageDetails": "usage_details", "traceId": "trace_id"}
    return {names.get(name, name): value for name, value in row.items()}


def langfuse_old(i: int, prompt: int, output: int) -> dict[str, Any]:
    usage = {"input": prompt, "output": output, "total": prompt + output, "unit": "TOKENS"}
    return {"id": f"o{i}", "name": "chat", "startTime": START[i], "endTime": END[i], "usage": usage}


SPAN = {**dict.fromkeys(langfuse(0, 1200, 300), ""), "id": "s", "type": "SPAN", "usageDetails": {}}
SPAN |= {"startTime": "2026-11-20 14:00:01.5", "endTime": "2026-11-20 14:00:01.6"}


def otlp(i: int, prompt: int, output: int) -> dict[str, Any]:
    start = 1763647201194000000 + i * GAP_NS
    values = {"gen_ai.usage.input_tokens": str(prompt), "gen_ai.usage.output_tokens": str(output)}
    span = {
        "traceId": f"t{i}",
        "spanId": f"s{i}",
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(start + 10**9),
        "attributes": [{"key": key, "value": {"intValue": value}} for key, value in values.items()],
    }
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {"name": "openai"}, "spans": [span]}]}]}


def bedrock(i: int, prompt: int, output: int) -> dict[str, Any]:
    return {
        "schemaType": "ModelInvocationLog",
        "timestamp": START[i].replace(".194", ""),
        "accountId": "1",
        "requestId": f"r{i}",
        "operation": "Converse",
        "modelId": "m",
        "input": {"inputTokenCount": prompt - 300, "cacheReadInputTokenCount": 200, "cacheWriteInputTokenCount": 100},
        "output": {"outputTokenCount": output, "outputBodyJson": {"metrics": {"latencyMs": 900}}},
    }


def helicone(i: int, prompt: int, output: int) -> dict[str, Any]:
    return {
        "response_id": f"x{i}",
        "response_created_at": END[i],
        "response_status": 200,
        "request_id": f"r{i}",
        "request_created_at": START[i],
        "request_body": {},
        "request_user_id": "u",
        "request_properties": {"Helicone-Session-Id": f"s{i}"},
        "model": "m",
        "delay_ms": 4000,
        "time_to_first_token": 300,
        "total_tokens": prompt + output,
        "prompt_tokens": prompt,
        "completion_tokens": output,
    }


def german(i: int, prompt: int, output: int) -> dict[str, Any]:
    grouped = f"{prompt:,}".replace(",", ".")
    return {"timestamp": f"{1 + 2 * i},194", "prompt_tokens": grouped, "completion_tokens": output, "latency_s": "4,0"}


READ = {
    "LiteLLM, JSON lines": lines(*each(litellm)),
    "LiteLLM, one JSON document": json.dumps(each(litellm)),
    "LiteLLM, its logging payload": lines(*each(litellm_payload)),
    "LiteLLM, CSV": as_csv(*each(litellm)),
    "Langfuse, CSV": as_csv(*each(langfuse)),
    "Langfuse, CSV with a span that is no generation": as_csv(*each(langfuse), SPAN),
    "Langfuse, CSV of its blob storage": as_csv(*each(langfuse_snake)),
    "Langfuse, CSV of before": as_csv(*each(langfuse_old)),
    "Langfuse, JSON lines": lines(*each(langfuse)),
    "OTLP, JSON lines": lines(*each(otlp)),
    "Bedrock": lines(*each(bedrock)),
    "Helicone, JSON lines": lines(*each(helicone)),
    "Helicone, CSV": as_csv(*each(helicone)),
    "decimal comma": as_csv(*each(german), separator=";"),
    "thousands": as_csv(*each(lambda i, p, o: {"timestamp": START[i], "prompt tokens": f"{p:,}", "output tokens": o})),
    "US dates": as_csv(
        *each(lambda i, p, o: {"time": f"11/20/2026 2:00:0{1 + 2 * i} PM", "input_tokens": p, "output_tokens": o})
    ),
}


@pytest.mark.parametrize("name", READ)
def test_what_tools_export_is_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "log").write_text(READ[name])
    trace = load_trace(tmp_path / "log")
    assert (trace.prompt_len.tolist(), trace.output_len.tolist()) == (PROMPTS, OUTPUTS)
    assert trace.arrival_ns.tolist() == [0, GAP_NS]


def foreign(*names: str) -> str:
    return as_csv(*each(lambda i, p, o: dict(zip(names, (START[i], "m", p, o), strict=True))), separator=";")


REFUSED = {
    "German headers": (
        foreign("Zeitstempel", "Modell", "Eingabe-Token", "Ausgabe-Token"),
        '--columns "arrival=Zeitstempel,prompt=Eingabe-Token,output=Ausgabe-Token"',
    ),
    "French headers": (
        foreign("Horodatage", "Mod\u00e8le", "jetons d'entr\u00e9e", "jetons de sortie"),
        "--columns \"arrival=Horodatage,prompt=COLUMN,output='jetons de sortie'\"",
    ),
    "Japanese headers": (
        foreign("\u6642\u523b", "\u578b", "\u5165\u529b", "\u51fa\u529b"),
        '--columns "arrival=\u6642\u523b,prompt=\u5165\u529b,output=\u51fa\u529b"',
    ),
    "one German header": (foreign("timestamp", "Modell", "Eingabe", "completion_tokens"), '--columns "prompt=Eingabe"'),
    "dates of an unknown order": (
        as_csv(*each(lambda i, p, o: {"time": f"11/0{5 + i}/2026 14:00:01", "input_tokens": p, "output_tokens": o})),
        "--columns dates=mdy",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_told_is_refused_with_what_to_do(tmp_path: Path, name: str) -> None:
    text, hint = REFUSED[name]
    (tmp_path / "log").write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as error:
        load_trace(tmp_path / "log")
    told = str(error.value)
    assert hint in told
    assert "\n" not in told
    assert len(told) - len(str(tmp_path)) < LONGEST


def test_the_line_on_foreign_headers_is_what_reads_the_file(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(REFUSED["German headers"][0])
    trace = load_trace(tmp_path / "log", columns="arrival=Zeitstempel,prompt=Eingabe-Token,output=Ausgabe-Token")
    assert trace.prompt_len.tolist() == PROMPTS


def test_tokens_beside_the_prompt_are_counted_once(tmp_path: Path) -> None:
    rows = [
        {"timestamp": i, "input_tokens": 100, "cache_read_input_tokens": 40, "output_tokens": 5, "total_tokens": total}
        for i, total in enumerate((105, 105))
    ]
    (tmp_path / "log").write_text(lines(*rows))
    assert load_trace(tmp_path / "log").prompt_len.tolist() == [100, 100]
    for total in (145, None):
        (tmp_path / "log").write_text(lines(*[row | {"total_tokens": total} for row in rows]))
        assert load_trace(tmp_path / "log").prompt_len.tolist() == [140, 140]


def test_a_column_of_texts_is_no_count_unless_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(as_csv(*each(lambda i, p, o: {"time": START[i], "input": "hi", "output_tokens": o})))
    with pytest.raises(UserError, match="no column for prompt tokens found"):
        load_trace(tmp_path / "log")
    with pytest.raises(UserError, match="line 2: input is 'hi' but must be a whole number of tokens"):
        load_trace(tmp_path / "log", columns="prompt=input")
