"""The server on a socket, as a command: it answers, drains at SIGTERM, and writes what it recorded."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

import servesim
from servesim.cli.app import app
from servesim.errors import UserError
from servesim.live.server import lengths
from servesim.run.setting_names import load_settings

pytest.importorskip("uvicorn", reason="the extra serve is not installed")
DEPLOYMENT = ("--model", "llama-3.2-1b", "--gpu", "h200")


@pytest.mark.medium
def test_a_server_answers_drains_at_sigterm_and_its_recording_is_replayed(tmp_path: Path) -> None:
    import httpx

    record = tmp_path / "seen.jsonl"
    command = [sys.executable, "-m", "servesim", "serve", *DEPLOYMENT, "--port", "0", "--record", str(record)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        address = re.search(r"http://127\.0\.0\.1:\d+", said)
        assert address is not None, said
        body = {"prompt": "some words", "max_tokens": 50, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{address[0]}/v1/completions", json=body, timeout=300) as answer:
            lines = answer.iter_lines()
            text = json.loads(next(lines).removeprefix("data: "))["choices"][0]["text"]
            process.send_signal(signal.SIGTERM)
            events = [line for line in lines if line]
        out, err = process.communicate(timeout=300)
    assert events.pop() == "data: [DONE]"
    text += "".join(json.loads(event.removeprefix("data: "))["choices"][0]["text"] for event in events)
    assert len(text.split()) == 50
    told = f"1 requests recorded in {record}; the same run offline: servesim run {record.with_suffix('.yaml')}\n"
    assert (process.returncode, out, err) == (0, told, "")
    result = servesim.simulate(trace=str(record), model="llama-3.2-1b", gpu="h200")
    assert result.requests["output_len"].tolist() == [50]
    again = servesim.simulate(load_settings(record.with_suffix(".yaml")))
    assert again.requests.equals(result.requests)


def test_lengths_are_drawn_by_row_and_seed() -> None:
    draw = lengths("uniform(10,20)", 1)
    assert {draw(row) for row in range(200)} == set(range(10, 21))
    assert draw(3) == lengths("uniform(10,20)", 1)(3)


def test_an_unknown_distribution_of_lengths_is_refused() -> None:
    with pytest.raises(UserError, match="unknown distribution 'long'"):
        lengths("long", 1)


def test_host_is_the_address_to_listen_on_and_host_terms_are_set_by_key() -> None:
    group: Any = typer.main.get_command(app)
    arguments = ["--host", "0.0.0.0", "--set", "host=vllm-0.12-h100"]
    given = group.get_command(None, "serve").make_context("serve", arguments).params
    assert given["host"] == "0.0.0.0"
    assert ["host=vllm-0.12-h100"] in given.values()
