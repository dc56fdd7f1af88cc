"""Labels become scenarios by one file; what cannot be replayed says why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from servesim.errors import UserError
from servesim.experiments.accuracy import recipes as module
from servesim.experiments.accuracy.recipes import laboratory_of, output_mean, recipe, recipes, version_of
from servesim.run.scenario import Scenario
from tests.support.cells import cell

GAP = "source_file=/x/aic-auto-gap-analysis/data/h100_sxm/vllm/0.12.0/y.csv; silicon_concurrency=8"


def settings(**labels: Any) -> dict[str, Any]:
    return recipe(cell(**labels)).settings


def test_a_closed_loop_of_all_clients_at_once() -> None:
    found = settings(concurrency=16)
    assert (found["rate"], found["clients"], found["requests"]) == ("inf", {"max_concurrency": 16}, 160)
    assert settings(concurrency=1)["requests"] == 40
    Scenario.of(found)


def test_lengths_by_source() -> None:
    assert settings(isl=1024, osl=8192)["trace"] == "synth:prompt=uniform(819,1024),output=uniform(6553,8192)"
    assert settings(isl=1000, osl=100, source=GAP)["trace"] == "synth:prompt=1000,output=100"
    others = ("trtllm/1.0.0rc3/y", "sglang/0.5.1.post1/y", "sglang/0.5.6.post2/meta", "sglang/0.5.6.post2/Qwen_Qwen3")
    drawn = [settings(isl=1000, osl=100, source=GAP.replace("vllm/0.12.0/y", other))["trace"] for other in others]
    assert drawn == [f"synth:prompt=1000,output={n}" for n in ("100", "100", "uniform(95,105)", "100")]
    assert output_mean(cell(osl=1000)) == pytest.approx(900)
    assert output_mean(cell(osl=1000, source=GAP)) == pytest.approx(1000)


def test_a_source_tells_the_laboratory_and_a_command_or_measure_tells_none() -> None:
    assert laboratory_of(cell()) == "InferenceX"
    assert {laboratory_of(cell(source=GAP.replace("vllm/0.12.0/y", one))) for one in ("vllm/1", "trtllm/1")} == {
        "NVIDIA"
    }
    assert laboratory_of(cell(flags=())) == laboratory_of(cell(settings=())) == ""


def test_a_registry_of_containers_is_no_source() -> None:
    """Images of TensorRT-LLM come from nvcr.io/nvidia whoever measured them."""
    source = "model=GPT-OSS-120B; silicon_concurrency=4; image=nvcr.io/nvidia/tensorrt-llm/release:1"
    assert "uniform(819,1024)" in settings(isl=1024, source=source)["trace"]


def test_rounded_copies_of_a_laboratory_are_replayed_as_its_own() -> None:
    copied = "source_file=/x/kimi-k2.5-gap-analysis.csv; silicon_concurrency=8"
    found = settings(model="moonshotai/Kimi-K2.5", weights="nvfp4", gpu="b200_sxm", isl=1000, source=copied)
    assert found["trace"].startswith("synth:prompt=uniform(800,1000)")
    assert laboratory_of(cell(source=copied)) == "InferenceX"


def test_scripts_that_changed_are_followed_by_the_day() -> None:
    def on(day: str) -> dict[str, Any]:
        source = f"source_file={day}.csv; silicon_concurrency=8; measured={day}T00:00:00Z"
        return settings(
            model="MiniMaxAI/MiniMax-M2.5", weights="fp8_block", gpu="b200_sxm", tp=4, isl=1024, source=source
        )

    before, after, last = on("2026-04-02"), on("2026-04-03"), on("2026-04-17")
    assert (before["kv_dtype"], before["scheduler"]["max_num_batched_tokens"]) == ("bf16", 8192)
    assert before["engine"]["enable_expert_parallel"]
    assert (after["kv_dtype"], after["scheduler"]["max_num_batched_tokens"]) == ("fp8", 2048)
    assert "float32_matmul_precision" not in after["engine"]
    assert last["engine"]["float32_matmul_precision"] == "high"
    assert {one["scheduler"]["max_num_seqs"] for one in (before, after, last)} == {1024}


def test_settings_that_labels_do_not_state() -> None:
    assert settings()["scheduler"] == {"name": "vllm", "max_num_batched_tokens": 8192, "max_num_seqs": 512}
    llama = settings(model="meta-llama/Llama-3.1-70B", weights="fp8", tp=2, concurrency=32)
    assert llama["scheduler"]["max_num_seqs"] == 32
    assert (llama["kv_dtype"], llama["dtype"]) == ("bf16", "fp8")
    assert settings(model="meta-llama/Llama-3.1-70B", weights="fp8", gpu="h200_sxm")["kv_dtype"] == "fp8"
    assert "kv_dtype" not in settings(model="meta-llama/Llama-3.1-70B", source=GAP)
    oss = settings(model="openai/gpt-oss-120b", weights="nvfp4", engine="trtllm", concurrency=8)
    assert (oss["dtype"], oss["preset"], "kv_dtype" in oss) == ("bf16", "tensorrt-llm", False)
    assert (oss["scheduler"]["max_num_tokens"], oss["scheduler"]["max_bs"]) == (20000, 8)
    assert settings(weights="")["dtype"] == "bf16"


def test_a_checkpoint_with_nvfp4_experts_keeps_its_attention_in_bf16() -> None:
    minimax = {"model": "MiniMaxAI/MiniMax-M2.5", "gpu": "b200_sxm", "tp": 2}
    assert [settings(**minimax, weights=w)["model"] for w in ("fp8", "nvfp4")] == ["minimax-m2.5", "minimax-m2.5-nvfp4"]
    assert [settings(**minimax, weights=w)["dtype"] for w in ("fp8", "nvfp4")] == ["fp8", "bf16"]


def test_what_a_source_s_scripts_set_by_gpu_prompt_and_number_of_clients() -> None:
    minimax = {"model": "MiniMaxAI/MiniMax-M2.5", "tp": 4, "weights": "fp8"}
    (b200, h200) = (settings(**minimax, gpu=gpu, isl=1024) for gpu in ("b200_sxm", "h200_sxm"))
    assert (b200["scheduler"]["max_num_batched_tokens"], b200["kv_dtype"]) == (2048, "fp8")
    assert (h200["scheduler"]["max_num_batched_tokens"], "kv_dtype" in h200) == (8192, False)
    deepseek = {"model": "deepseek-ai/DeepSeek-V3", "engine": "sglang", "gpu": "b200_sxm", "tp": 4, "weights": "nvfp4"}
    found = [settings(**deepseek, concurrency=clients)["scheduler"] for clients in (4, 15, 16, 128)]
    assert [each["scheduler_recv_interval"] for each in found] == [10, 10, 30, 30]
    assert found[0]["name"] == "sglang"
    assert "scheduler" not in settings(**{**deepseek, "weights": "fp8"})


def test_a_generated_deployment_has_room_for_its_clients_a_prompt_and_1500_tokens_in_whole_blocks() -> None:
    source = GAP.replace("vllm/0.12.0", "trtllm/1.0.0rc3")
    found = settings(engine="trtllm", version="1.0.0rc3", isl=1024, concurrency=8, weights="fp8", source=source)
    assert (found["scheduler"]["name"], found["scheduler"]["max_bs"]) == ("selective", 8)
    assert found["scheduler"]["max_num_tokens"] == 2560  # 8 + 1,024 + 1,500 = 2,532, of 32 tokens a block
    assert found["kv_dtype"] == "fp8"
    assert "kv_dtype" not in settings(engine="trtllm", version="1.0.0rc3", weights="", source=source)
    vllm = settings(isl=4096, concurrency=128, source=GAP)["scheduler"]
    assert vllm == {"name": "vllm", "max_num_seqs": 128, "max_num_batched_tokens": 5728}  # 5,724 in whole blocks
    sglang = settings(engine="sglang", source=GAP.replace("vllm/0.12.0", "sglang/0.5.1.post1"))
    assert "scheduler" not in sglang


def test_a_version_that_is_not_stated_follows_from_the_day() -> None:
    def version(engine: str, day: str, stated: str = "") -> tuple[str, bool]:
        return version_of(cell(engine=engine, version=stated, source=f"a; silicon_concurrency=4; measured={day}T00:00"))

    assert version("vllm", "2025-10-29") == ("0.11.0", True)
    assert version("vllm", "2025-11-17") == ("0.11.0", True)
    assert version("vllm", "2025-11-18") == ("", False)
    assert version("trtllm", "2025-10-29") == ("1.1.0rc2", True)
    assert version("vllm", "2025-10-29", "v0.18.0") == ("0.18.0", False)
    assert version_of(cell(engine="vllm", version="")) == ("", False)
    scenario = settings(version="", source="a; measured=2025-10-29T00:00:00.000Z")
    assert scenario["engine"] == {"async_scheduling": True, "version": "0.11.0"}


def test_expert_parallelism_by_label_and_where_the_label_is_known_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_model", lambda label, own: "qwen3-30b-a3b")
    ahead = {"async_scheduling": True}
    alike = {"model": "MiniMaxAI/MiniMax-M2.5", "weights": "fp8", "tp": 8}
    assert settings(**alike, moe_tp=8)["engine"] == ahead | {"version": "0.18.0"}
    assert settings(**alike, moe_tp=8, version="nightly")["engine"] == ahead
    dealt = ahead | {"version": "0.18.0", "enable_expert_parallel": True}
    assert settings(**alike, ep=8)["engine"] == dealt
    assert settings(**alike, moe_tp=8, gpu="h200_sxm")["engine"] == dealt


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ({"mode": "disagg"}, "separate servers"),
        ({"pp": 2}, "pipeline of 2 stages"),
        ({"tp": 2, "moe_tp": 4}, "experts over 4 GPUs, attention over 2"),
        ({"weights": "w4a8"}, "format of weights w4a8"),
        ({"gpu": "mi300x"}, "GPU mi300x"),
        ({"engine": "lmdeploy"}, "engine lmdeploy"),
        ({"model": "acme/unheard-of-7b"}, "model acme/unheard-of-7b: not bundled"),
    ],
)
def test_what_is_not_answered_says_why(labels: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        recipe(cell(**labels))


def test_a_model_that_is_not_bundled_is_read_from_the_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "model_configs" / "acme--unheard-of-7b_config.json"
    config.parent.mkdir()
    config.write_text("{}")
    monkeypatch.setattr(module, "package_folder", lambda: tmp_path)
    assert settings(model="acme/unheard-of-7b")["model"] == str(config)
    monkeypatch.setattr(module, "package_folder", lambda: None)
    with pytest.raises(UserError, match="the silicon extra, which has more configurations, is not installed"):
        recipe(cell(model="acme/unheard-of-7b"))


def test_every_setting_says_where_it_is_known_from() -> None:
    loaded = recipes()
    entries = [*loaded["sources"], *loaded["engines"].values(), *loaded["models"].values(), loaded["requests"]]
    entries += [entry for versions in loaded["versions"].values() for entry in versions]
    assert all(entry["because"] for entry in [*entries, loaded["boxes"]])
