"""Logs of real engines: written, read back, fitted; and vLLM driven by a stand-in for its engine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from servesim.calibrate.engines import (
    EngineLog,
    EngineStep,
    Piece,
    RequestLog,
    fit_step_host,
    prompt_tokens,
    read_steps_csv,
    warmup_trace,
)
from servesim.calibrate.engines import vllm as driver
from servesim.calibrate.host import STEP_COLUMNS
from servesim.calibrate.points import Shard
from servesim.calibrate.profile import Options, profile
from servesim.cost import build_cost_model
from servesim.errors import UserError
from servesim.experiments.recording_formats import read_folder
from servesim.experiments.validate import validate
from servesim.hardware import Gpu, ModelSpec
from tests.support.devices import FormulaDevice, FormulaKernels
from tests.support.worlds import toy_trace


def log(**meta: Any) -> EngineLog:
    request = RequestLog(0, 100, 3, queued=1.0)
    request.took_part(1.001)
    for tokens, at in ((1, 1.02), (2, 1.03), (3, 1.04)):
        request.delivered(tokens, at)
    steps = [
        EngineStep(1.001, 1.02, (Piece(100, 0, True),), 0.018),
        EngineStep(1.02, 1.03, (Piece(1, 100, True),), 0.009),
    ]
    return EngineLog({"engine": "vllm 0.26.0", "model": "llama-3.1-8b", "gpu": "NVIDIA H200", **meta}, [request], steps)


def test_a_log_is_read_back_by_validate(tmp_path: Path) -> None:
    log(max_num_seqs=7, block_size=16, dtype="fp8", num_gpu_blocks=500).write(tmp_path / "run")
    (run,) = read_folder(tmp_path / "run")
    server = run.server
    assert (server.engine, server.model, server.gpu) == ("vllm 0.26.0", "llama-3.1-8b", "h200")
    assert (server.max_num_seqs, server.num_blocks, server.dtype) == (7, 500, "fp8")
    assert run.at_engine
    assert run.ttft_ms.tolist() == pytest.approx([20.0])
    assert run.e2el_ms.tolist() == pytest.approx([40.0])
    (found,) = validate(tmp_path / "run")
    assert found.simulated is not None
    assert found.simulated["ttft"]["mean"] > 0


def test_a_log_of_transformers_is_replayed_by_its_own_policy_and_data_sheet(tmp_path: Path) -> None:
    meta = {"engine": "transformers 5.17.0", "model": "tiny-llama", "gpu": "device.yaml", "dtype": "fp32"}
    meta |= {"kv_cache_dtype": "fp32", "scheduler": "transformers:scheduler_type=prefill_first"}
    log(**meta, async_scheduling=False, num_gpu_blocks=65, block_size=256).write(tmp_path / "run")
    sheet = "bandwidth: 25.0e9\nflops: {fp32: 1.0e11, bf16: 1.0e11}\nmemory_bytes: 16000000000\ntables: null\n"
    sheet += "description: x\nnvlink_bandwidth: 0\npcie_bandwidth: 25.0e9\nusd_per_hour: 0\n"
    (tmp_path / "run" / "device.yaml").write_text(sheet)
    (run,) = read_folder(tmp_path / "run")
    assert run.server.scheduler == "transformers:scheduler_type=prefill_first"
    assert (run.server.dtype, run.server.kv_dtype, run.server.asynchronous) == ("fp32", "fp32", False)
    (found,) = validate(tmp_path / "run", tables="roofline")
    assert found.simulated is not None
    assert found.unpriced == ""


def test_steps_keep_their_exact_composition_and_the_columns_of_calibrate_host(tmp_path: Path) -> None:
    steps = [
        EngineStep(1.0, 1.01, (Piece(1, 40, True), Piece(64, 0, True)), 0.005),
        EngineStep(1.02, 1.05, (Piece(1, 41, True), Piece(30, 64, False)), 0.02),
    ]
    path = tmp_path / "steps.csv"
    EngineLog({}, [], steps).write(tmp_path)
    back = read_steps_csv(path)
    assert [s.pieces for s in back] == [s.pieces for s in steps]
    assert [s.end - s.start for s in back] == pytest.approx([0.01, 0.03], abs=1e-6)
    header, first, second = path.read_text().splitlines()
    assert set(header.split(",")) >= STEP_COLUMNS
    assert first.split(",")[2:7] == ["True", "2", "1", "64", "105"]
    assert second.split(",")[2] == "False"  # its columns cannot say that 30 tokens are a part of a prompt
    batch = steps[1].batch()
    assert (batch.linear_tokens, batch.prefill, batch.decode_count, batch.sampled) == (31, [(30, 64)], 1, 1)
    assert batch.decode_context_sum == 42


def test_a_request_that_lost_tokens_is_no_log(tmp_path: Path) -> None:
    incomplete = log()
    incomplete.requests[0].tokens = 2
    with pytest.raises(UserError, match="request 0 only 2 of 3 tokens"):
        incomplete.check()
    (tmp_path / "mine.txt").touch()
    with pytest.raises(UserError, match="contains other files but no engine log"):
        log().write(tmp_path)


def test_host_terms_are_found_again_where_steps_were_made_of_them() -> None:
    cost = build_cost_model(ModelSpec.load("llama-3.1-8b"), Gpu.load("h200"))
    steps = []
    for n in range(1, 40):
        pieces = tuple(Piece(1, 100 + 10 * i, True) for i in range(n))
        bare = EngineStep(0.0, 1.0, pieces)
        ns = cost.price(bare.batch()).gpu_ns + 2_000_000 + 30_000 * n
        steps.append(EngineStep(0.0, ns / 1e9, pieces))
    steps.append(EngineStep(0.0, 0.5, (Piece(1, 9, True),)))  # something else ran on the machine
    terms = fit_step_host(steps, cost, "x 1")
    assert terms.overlapped == pytest.approx(2_000_000, rel=0.02)
    assert terms.overlapped_per_sequence == pytest.approx(30_000, rel=0.02)
    with pytest.raises(UserError, match="raise --warmup"):
        fit_step_host(steps[:7], cost, "x 1")


def test_the_warm_up_has_the_lengths_of_the_trace_and_other_requests_first() -> None:
    trace = toy_trace([0, 10, 30, 40], [5, 6, 7, 8], [1, 2, 3, 4])
    warm = warmup_trace(trace, 3)
    assert (warm.prompt_len.tolist(), warm.output_len.tolist()) == ([8, 7, 6], [4, 3, 2])
    assert np.diff(warm.arrival_ns).tolist() == [10, 20]
    assert len(warmup_trace(trace, 99)) == 4


def test_prompts_share_tokens_exactly_where_the_trace_says_so() -> None:
    trace = toy_trace([0, 1, 2], [20, 20, 20], [1, 1, 1], runs=[[(3, 12), (4, 8)], [(3, 12), (5, 8)], [(6, 20)]])
    a, b, c = (prompt_tokens(trace, row, 1000, 1) for row in range(3))
    assert a[:12] == b[:12]
    assert a[12:] != b[12:]
    assert a[:12] != c[:12]
    assert len(a) == 20
    assert prompt_tokens(trace, 0, 1000, 2) != a


class Engine:
    """vLLM's LLMEngine as far as the driver sees it: chunks of 8 tokens, one request after the other decodes along."""

    def __init__(self, arguments: Any) -> None:
        self.arguments = arguments
        self.engine_core = SimpleNamespace(engine_core=SimpleNamespace(scheduler=self))
        self.vllm_config = SimpleNamespace(
            cache_config=SimpleNamespace(
                cache_dtype="auto", num_gpu_blocks=321, block_size=16, enable_prefix_caching=False
            ),
            scheduler_config=SimpleNamespace(max_num_seqs=4, max_num_batched_tokens=8, async_scheduling=False),
            model_config=SimpleNamespace(max_model_len=4096),
        )
        self.requests: dict[str, Any] = {}
        self.outer: dict[str, str] = {}

    from_engine_args = classmethod(lambda cls, arguments: cls(arguments))

    def add_request(self, name: str, prompt: Any, params: Any) -> str:
        inner = f"{name}-abcd1234"
        ids = prompt["prompt_token_ids"]
        self.outer[inner] = name
        self.requests[inner] = SimpleNamespace(
            num_tokens=len(ids), prompt=len(ids), computed=0, left=params.max_tokens, new=True
        )
        return inner

    def has_unfinished_requests(self) -> bool:
        return bool(self.requests)

    def schedule(self, throttle: bool) -> Any:
        budget, counts, past = 8, {}, {}
        for name, r in self.requests.items():
            if budget:
                counts[name] = min(r.num_tokens - r.computed, budget)
                past[name] = r.computed
                budget -= counts[name]
        fresh = [n for n in counts if self.requests[n].new]
        old = [n for n in counts if not self.requests[n].new]
        for name, count in counts.items():
            self.requests[name].computed += count
            self.requests[name].new = False
        return SimpleNamespace(
            scheduled_new_reqs=[SimpleNamespace(req_id=n, num_computed_tokens=past[n]) for n in fresh],
            scheduled_cached_reqs=SimpleNamespace(req_ids=old, num_computed_tokens=[past[n] for n in old]),
            num_scheduled_tokens=counts,
        )

    def step(self) -> list[Any]:
        output = self.engine_core.engine_core.scheduler.schedule(False)
        done = []
        for name in output.num_scheduled_tokens:
            r = self.requests[name]
            if r.computed == r.num_tokens:
                r.num_tokens += 1
                made = r.num_tokens - r.prompt
                done.append(
                    SimpleNamespace(request_id=self.outer[name], outputs=[SimpleNamespace(token_ids=[7] * made)])
                )
                if made == r.left:
                    del self.requests[name]
        return done


def test_vllm_is_driven_open_loop_and_every_step_is_logged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module: Any = ModuleType("vllm")
    module.__version__, module.LLMEngine = "0.26.0", Engine
    module.EngineArgs = lambda **values: values
    module.SamplingParams = lambda **values: SimpleNamespace(**values)
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setattr(driver, "_gpu_name", lambda: "NVIDIA H200")
    config = {"vocab_size": 100, "max_position_embeddings": 64}
    trace = toy_trace([0, 1_000_000, 2_000_000], [10, 3, 5], [4, 2, 1])
    found = driver.run_vllm(config, "llama-3.1-8b", trace, driver.VllmSettings(max_num_seqs=4), warmup=2)
    found.check()
    assert [(r.prompt_len, r.tokens) for r in found.requests] == [(10, 4), (3, 2), (5, 1)]
    assert found.steps[0].pieces == (Piece(8, 0, False),)
    assert Piece(2, 8, True) in found.steps[1].pieces
    assert sum(p.new for s in found.steps for p in s.pieces) == 10 + 3 + 3 + 1 + 5
    assert sum(p.sampled for s in found.steps for p in s.pieces) == 4 + 2 + 1
    for r in found.requests:
        assert r.queued <= r.scheduled < r.first_token <= r.last_token
    assert found.warmup
    assert found.meta["num_gpu_blocks"] == 321
    found.write(tmp_path / "run")
    assert read_folder(tmp_path / "run")[0].server.num_blocks == 321


def test_the_command_logs_fits_host_terms_on_a_profile_and_validate_takes_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from servesim.cli import app as cli

    module: Any = ModuleType("vllm")
    module.__version__, module.LLMEngine = "0.26.0", Engine
    module.EngineArgs = lambda **values: values
    module.SamplingParams = lambda **values: SimpleNamespace(**values)
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setattr(driver, "_gpu_name", lambda: "NVIDIA H200")
    device, tables, out = FormulaDevice(), tmp_path / "tables", tmp_path / "log"
    shard = Shard(ModelSpec.load("llama-3.1-8b"), 1, "bf16")
    profile(device, FormulaKernels(device), [shard], Options(tables, 60.0, None, 64, 256, 4))
    command = "servesim calibrate engine --model llama-3.1-8b --trace synth:rate=500,prompt=9,output=4 --requests 12"
    more = ["--kernel-tables", str(tables), "--out", str(out)]
    monkeypatch.setattr("sys.argv", [*command.split(), *more])
    assert cli._guarded() == 0, capfd.readouterr().err
    assert "host time of a step" in capfd.readouterr().out
    monkeypatch.setattr("sys.argv", ["servesim", "validate", str(out), "--host", str(out / "host.yaml"), *more[:2]])
    assert cli._guarded() == 0
    assert "llama-3.1-8b on 1 x h200, vllm 0.26.0" in " ".join(capfd.readouterr().out.split())
    monkeypatch.setattr("sys.argv", [*command.split(), "--kernel-tables", str(tmp_path), "--out", str(out)])
    assert cli._guarded() == 2  # before the engine starts
    assert "contains no profile" in capfd.readouterr().err


def test_vllm_gets_the_arguments_of_an_offline_machine(tmp_path: Path) -> None:
    settings = driver.VllmSettings(max_num_seqs=4, num_blocks=99, more={"enable_prefix_caching": True})
    arguments = settings.arguments(tmp_path)
    assert (arguments["load_format"], arguments["skip_tokenizer_init"]) == ("dummy", True)
    assert (arguments["num_gpu_blocks_override"], arguments["enable_prefix_caching"]) == (99, True)
    assert "max_num_batched_tokens" not in arguments


def test_without_vllm_the_command_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    trace = toy_trace([0], [10], [4])
    with pytest.raises(UserError, match=r"needs vLLM 0\.26"):
        driver.run_vllm({"vocab_size": 10}, "x", trace, driver.VllmSettings(), 1)


def test_arguments_of_the_command_are_checked(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from servesim.cli import app as cli

    base = ["servesim", "calibrate", "engine", "--model", "tiny-llama", "--out", "nowhere", "--trace"]
    cases = {
        "synth:rate=1,prompt=5000,output=2": "exceeds the maximum of 4096 of tiny-llama",
        "preset:azure-conv-2023 --engine sglang": "unknown engine 'sglang'",
        "synth:rate=1,prompt=9,output=2 --requests 5 --engine-arg x": "must be KEY=JSON",
    }
    for arguments, message in cases.items():
        monkeypatch.setattr("sys.argv", [*base, *arguments.split()])
        assert cli._guarded() == 2
        assert message in capfd.readouterr().err
    assert not Path("nowhere").exists()


def test_a_log_is_small() -> None:
    rows = [json.dumps(RequestLog(i, 1000, 100).to_dict()) for i in range(10)]
    assert sum(map(len, rows)) / 10 < 250
