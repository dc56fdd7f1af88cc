"""The command line: what it prints, what it refuses on one line, and how fast its help is there."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from servesim.cli import app as cli
from servesim.engine import compiled

RUN = ["run", "--trace", "synth:rate=20,prompt=300,output=20", "--requests", "40", "--model", "llama-3.2-1b"]
RUN += ["--gpu", "h200"]

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def servesim(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs a command line in this process: exit code, stdout, stderr."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["servesim", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as caught:
            cli.main()
        printed = capsys.readouterr()
        assert isinstance(caught.value.code, int)
        return caught.value.code, printed.out, printed.err

    return call


def refused(result: tuple[int, str, str], *said: str, code: int = 2) -> None:
    assert result[0] == code
    assert result[1] == ""
    assert result[2].startswith("error: ")
    assert result[2].count("\n") == 1, result[2]
    for text in said:
        assert text in result[2]


def test_a_run_that_serves_nothing_is_no_success(servesim: Cli, tmp_path: Path) -> None:
    small = ("--max-model-len", "200", "--no-report", "--out", tmp_path / "r")
    code, out, err = servesim(*RUN, *small)
    assert (code, err) == (1, "failed: none of 40 requests was served\n")
    assert "stable" not in out
    assert (tmp_path / "r" / "summary.json").exists()


@pytest.mark.medium
def test_a_run_prints_its_summary(servesim: Cli, tmp_path: Path) -> None:
    code, out, err = servesim(*RUN, "--slo", "ttft:500,tpot:50", "-v", "--out", tmp_path / "r")
    assert (code, err) == (0, "")
    for word in ("TTFT", "TPOT", "ITL", "E2E", "goodput", "KV memory", "preemptions", "prefix cache", "GPU", "price"):
        assert word in out
    for word in ("40 completed of 40", "extrapolated", "stable", "per million tokens", "aiconfigurator-core", "note: "):
        assert word in out
    assert sorted(p.name for p in (tmp_path / "r").iterdir()) == [
        "deliveries.parquet",
        "report.html",
        "requests.parquet",
        "scenario.yaml",
        "steps.parquet",
        "summary.json",
        "timing.json",
    ]


@pytest.mark.medium
def test_json_is_the_summary_file(servesim: Cli, tmp_path: Path) -> None:
    code, out, _ = servesim(*RUN, "--json", "--out", tmp_path / "r")
    assert code == 0
    assert out == (tmp_path / "r" / "summary.json").read_text()


def test_flags_override_set_and_set_overrides_the_file(servesim: Cli, tmp_path: Path) -> None:
    scenario = tmp_path / "s.yaml"
    scenario.write_text(
        "trace: synth:rate=20,prompt=300,output=20\nrequests: 10\nmodel: llama-3.2-1b\ngpu: h100\n"
        "scheduler: vllm:max_num_seqs=9\n"
    )
    code, out, _ = servesim(
        *("run", scenario, "--set", "gpu=h200", "--set", "requests=20", "--set", "kv.name=paged"),
        *("--requests", "5", "--json"),
    )
    assert code == 0
    resolved = json.loads(out)["scenario"]
    assert (resolved["gpu"], resolved["requests"], resolved["kv"]["name"]) == ("h200", 5, "paged")
    assert resolved["scheduler"]["max_num_seqs"] == 9


def test_a_run_that_was_checked_says_so(servesim: Cli) -> None:
    code, out, _ = servesim(*RUN, "--check")
    assert code == 0
    (line,) = re.findall(r"checked: [^.]*?requests", " ".join(out.split()))
    assert line.endswith("fast mode and reference mode agree on the first 40 requests")
    _, out, _ = servesim(*RUN, "--check", "--mode", "reference")
    assert "checked: scheduler and memory kept their invariants after every step" in " ".join(out.split())
    assert "checked:" not in servesim(*RUN)[1]


def test_a_policy_in_a_file_of_one_s_own_runs(servesim: Cli, tmp_path: Path) -> None:
    policy = tmp_path / "lifo.py"
    policy.write_text(
        "from servesim.policies.scheduling.vllm import Vllm\n"
        "class Lifo(Vllm):\n"
        "    supports = frozenset()\n"
        "    def on_arrival(self, request):\n"
        "        self.waiting.appendleft(request)\n"
    )
    code, out, _ = servesim(*RUN, "--scheduler", f"{policy}:Lifo:max_num_seqs=4", "--json")
    assert code == 0
    summary = json.loads(out)
    assert summary["engine"]["batch_size"]["max"] <= 4
    assert len(summary["provenance"]["policy_files"]["scheduler"]) == 64
    assert any("plans synchronously" in note for note in summary["notes"])


def test_a_policy_that_plans_nothing_is_a_bug_not_bad_input(servesim: Cli, tmp_path: Path) -> None:
    policy = tmp_path / "lazy.py"
    policy.write_text(
        "from servesim.contracts import Scheduler\n"
        "class Lazy(Scheduler):\n"
        "    def plan(self, ctx):\n"
        "        return ctx.plan\n"
    )
    out = tmp_path / "r"
    refused(servesim(*RUN, "--scheduler", f"{policy}:Lazy", "--out", out), "Lazy", "plans nothing", code=1)
    assert not out.exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,300,44\n2023-11-16 18:15:50.98,39", "line 3"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,-300,44\n", "ContextTokens is '-300'"),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,3,4\n2023-11-16 18:15:45.68,3,4\n",
            "line 3: arrives before",
        ),
        ("", "empty"),
        ("a,b\n1,2\n", "no column for times of arrival"),
    ],
)
def test_damaged_traces_are_refused_on_one_line(servesim: Cli, tmp_path: Path, text: str, said: str) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(text)
    refused(servesim("run", "--trace", trace, "--model", "llama-3.1-8b", "--gpu", "h200"), str(trace), said)
    refused(servesim("trace", "inspect", trace), str(trace), said)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "llama-3.1-7b"], ["llama-3.1-7b", "did you mean"]),
        (["--model", "llama-3.1-70b"], ["llama-3.1-70b", "GiB"]),
        (["--gpu", "h300"], ["h300"]),
        (["--trace", "none.csv"], ["none.csv"]),
        (["--trace", "preset:azure-conv"], ["azure-conv-2023"]),
        (["--mode", "quick"], ["mode is 'quick'"]),
        (["--rate", "-1"], ["rate is '-1': must be above 0"]),
        (["--rate", "fast"], ["rate is 'fast': must be requests/s, or a factor such as 3x"]),
        (["--requests", "0"], ["requests is 0"]),
        (["--set", "engine.block_size=99999999999999999999999"], ["engine.block_size", "less than or equal"]),
        (["--set", "engine.swap_space_gib=inf"], ["engine.swap_space_gib", "less than or equal"]),
        (["--set", "clients.timeout_s=inf"], ["clients.timeout_s", "less than or equal"]),
        (["--set", "clients.ttft_timeout_s=1e300"], ["clients.ttft_timeout_s", "less than or equal"]),
        (["--set", "clients.retry_delay_s=1e300"], ["clients.retry_delay_s", "less than or equal"]),
        (["--set", "usd_per_gpu_hour=inf"], ["usd_per_gpu_hour", "less than or equal"]),
        (["--slo", "ttfp:5"], ["did you mean"]),
        (["--set", "engine.blocksize=3"], ['did you mean "block_size"?']),
        (["--set", "oops"], ["key=value"]),
        (["--scheduler", "vllm:policy=lifo"], ['"fcfs" or "priority"']),
        (["--no-such-option"], ["--no-such-option"]),
        (["missing.yaml"], ["missing.yaml"]),
    ],
)
def test_bad_input_is_refused_on_one_line(servesim: Cli, arguments: list[str], said: list[str]) -> None:
    refused(servesim(*RUN, *arguments), *said)


def test_requests_that_never_fit_are_rejected_and_counted(servesim: Cli) -> None:
    code, out, _ = servesim(*RUN, "--set", "engine.max_model_len=310")
    assert code == 1  # nothing was served
    assert "0 completed of 40, 40 rejected" in out
    assert "rejected 40: prompt + max_tokens exceeds max_model_len 310" in out


def test_traces_are_inspected_and_converted(servesim: Cli, tmp_path: Path) -> None:
    path = tmp_path / "twin.jsonl"
    twin = ("preset:mooncake-conversation", path, "--to", "mooncake", "--requests", "50")
    code, out, _ = servesim("trace", "convert", *twin)
    assert (code, out) == (0, f"{path}: 50 requests, format mooncake\n")
    code, out, _ = servesim("trace", "inspect", path)
    assert code == 0
    assert "requests" in out
    assert "prefix hits" in out
    code, out, _ = servesim("trace", "inspect", path, "--json")
    assert json.loads(out)["requests"] == 50


def test_version_and_help_are_there(servesim: Cli) -> None:
    build = " (compiled)" if compiled() else ""
    assert servesim("--version")[1] == f"servesim {cli.__version__}{build}\n"
    assert "trace" in servesim()[1]
    assert "Examples" in servesim("run", "--help")[1]


def process(*arguments: str, **more: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "servesim", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)  # type: ignore[call-overload,no-any-return]


def test_help_loads_nothing_heavy() -> None:
    script = "import sys, servesim.cli.app; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"numpy", "pandas", "scipy", "matplotlib", "pyarrow", "pydantic", "simpy", "yaml"}
    assert heavy & set(loaded) == set()


@pytest.mark.medium
def test_a_run_does_not_load_what_it_does_not_need(tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "r"), "--no-report"]
    script = f"import sys; sys.argv = {['servesim', *RUN, *out]}; from servesim.cli import app as cli; cli._guarded()"
    script += "; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert {"pandas", "scipy", "matplotlib", "torch"} & set(loaded) == set()
    assert "numpy" in loaded


@pytest.mark.medium
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_is_one_line_and_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    with process(
        *("run", "--trace", "preset:azure-conv-2023", "--requests", "20000", "--model", "llama-3.1-8b"),
        *("--gpu", "h200", "--mode", "reference", "--out", str(tmp_path / "new" / "r")),
        # whoever started the tests in the background has interrupts ignored, which children inherit
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as running:
        while not any(tmp_path.glob("new/*/summary.json")):
            assert running.poll() is None, "ended by itself"
            time.sleep(0.05)
        os.kill(running.pid, number)
        _, err = running.communicate(timeout=300)
    assert running.returncode == 130
    assert err == "interrupted: nothing was written\n"
    assert list(tmp_path.iterdir()) == []


INTERRUPTED_IMPORT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)

class Interrupt:
    def find_spec(self, name, *_):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
from servesim.__main__ import main
main()
"""


def test_ctrl_c_while_the_command_line_is_imported_is_one_line() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED_IMPORT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted: nothing was written\n")


SWALLOWED_INTERRUPT = """
import signal, sys, time
from importlib.machinery import ExtensionFileLoader
from servesim.__main__ import main

class Extension(ExtensionFileLoader):
    def exec_module(self, module):
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            pass  # as the initialization of PyYAML's C extension does

class Interrupt:
    def find_spec(self, name, *_):
        if name == "typer":
            Extension("x", "x").exec_module(None)
            for _ in range(6000):  # the second one comes between two of them
                time.sleep(0.05)

sys.meta_path.insert(0, Interrupt())
main()
"""


def test_an_interrupt_that_the_initialization_of_a_c_extension_would_swallow_comes_again() -> None:
    done = subprocess.run([sys.executable, "-c", SWALLOWED_INTERRUPT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted: nothing was written\n")


@pytest.mark.medium
def test_a_reader_that_goes_away_is_no_traceback() -> None:
    with process(*RUN, "--json") as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        assert "Traceback" not in running.stderr.read()
    assert running.returncode == 0
    with process("policies") as listing:
        assert listing.stdout is not None
        assert listing.stderr is not None
        listing.stdout.close()
        assert listing.stderr.read() == ""
    assert listing.returncode == 0
