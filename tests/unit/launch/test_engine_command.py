"""Commands of scenarios: what is written is read back, and the rest is listed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from servesim.errors import UserError
from servesim.hardware import ModelSpec, model_named
from servesim.launch import command
from servesim.launch.difference import whole
from servesim.launch.engine_command import checkpoints
from servesim.launch.flow import comment
from servesim.run.deployment_file import commented, restored
from servesim.run.serve_command import served
from tests.support.launched import scenarios

BASE = {"trace": "synth:rate=1", "model": "meta-llama/Llama-3.1-8B-Instruct", "gpu": "h100", "preset": "vllm"}


@pytest.mark.feature("data_parallel")
@given(scenarios())
def test_a_command_and_its_lost_settings_mean_the_same_scenario(settings: dict[str, Any]) -> None:
    written = command(settings)
    assert whole(restored(served(written.text).settings, written.lost)) == whole(settings)
    assert commented(comment(written.lost)) == written.lost
    assert comment(written.lost).count("\n") == 1


@given(scenarios(most_others=0))
def test_every_flag_that_is_written_is_known(settings: dict[str, Any]) -> None:
    found = served(command(settings).text)
    assert not found.unknown


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "vllm serve meta-llama/Llama-3.1-8B-Instruct"),
        ({"tp": 2, "engine": {"block_size": 32}}, "vllm serve {} --tensor-parallel-size 2 --block-size 32"),
        ({"kv": "paged"}, "vllm serve {} --no-enable-prefix-caching"),
        ({"dtype": "fp8"}, "vllm serve {} --quantization fp8"),
        ({"speculation": "ngram:k=4"},
         """vllm serve {} --speculative-config '{{"method": "ngram", "num_speculative_tokens": 4}}'"""),
        ({"speculation": "eagle3:k=4"},
         """vllm serve {} --speculative-config '{{"method": "eagle3", "model": """
         """"yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "num_speculative_tokens": 4}}'"""),
        ({"speculation": "draft-model:k=2,model=meta-llama/Llama-3.2-1B-Instruct"},
         """vllm serve {} --speculative-config '{{"method": "draft_model", "model": """
         """"meta-llama/Llama-3.2-1B-Instruct", "num_speculative_tokens": 2}}'"""),
        ({"preset": "sglang", "speculation": "eagle:k=3"},
         "python -m sglang.launch_server --model-path {} --speculative-algorithm EAGLE --speculative-draft-model-path "
         "yuhuili/EAGLE-LLaMA3.1-Instruct-8B --speculative-num-steps 3 --speculative-eagle-topk 1 "
         "--speculative-num-draft-tokens 4"),
        ({"preset": "sglang", "speculation": "mtp:k=1"},
         "python -m sglang.launch_server --model-path {} --speculative-algorithm NEXTN --speculative-num-steps 1 "
         "--speculative-eagle-topk 1 --speculative-num-draft-tokens 2"),
        ({"preset": "tensorrt-llm", "speculation": "eagle3:k=3"},
         "cat > /tmp/extra-llm-api-config.yml <<'END'\nspeculative_config:\n  decoding_type: Eagle3\n"
         "  max_draft_len: 3\n  speculative_model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B\nEND\n"
         "trtllm-serve {} --extra_llm_api_options /tmp/extra-llm-api-config.yml"),
        ({"scheduler": {"name": "vllm", "enable_chunked_prefill": False}}, "vllm serve {} --no-enable-chunked-prefill"),
        ({"preset": "sglang", "kv": "paged"}, "python -m sglang.launch_server --model-path {} --disable-radix-cache"),
        ({"preset": "sglang", "scheduler": "sglang:enable_mixed_chunk=true"},
         "python -m sglang.launch_server --model-path {} --enable-mixed-chunk"),
        ({"preset": "tensorrt-llm", "tp": 4, "scheduler": "selective:max_bs=64"},
         "trtllm-serve {} --tp_size 4 --max_batch_size 64"),
        ({"preset": "vllm-v0"}, "VLLM_USE_V1=0 vllm serve {}"),
    ],
)  # fmt: skip
def test_a_scenario_is_written_as_its_engine_takes_it(settings: dict[str, Any], text: str) -> None:
    assert command(BASE | settings).text == text.format(BASE["model"])


@pytest.mark.parametrize("preset", ["vllm", "sglang", "tensorrt-llm"])
@pytest.mark.parametrize(
    "speculation", ["eagle3:k=4", "mtp:k=2", "draft-model:k=2,model=meta-llama/Llama-3.2-1B-Instruct"]
)
def test_drafts_are_held_by_the_command_of_every_engine(preset: str, speculation: str) -> None:
    written = command(BASE | {"preset": preset, "speculation": speculation})
    assert set(written.lost) == {"trace", "gpu"}


@pytest.mark.parametrize(
    ("preset", "speculation"),
    [("sglang", "ngram:k=4"), ("sglang", "medusa"), ("tensorrt-llm", "eagle"), ("tensorrt-llm", "ngram"),
     ("vllm", "eagle3:k=2,mlp_width=8"), ("vllm", "eagle3:k=2,adapt=goodput")],
)  # fmt: skip
def test_drafts_that_an_engine_does_not_have_are_lost_by_name(preset: str, speculation: str) -> None:
    written = command(BASE | {"preset": preset, "speculation": speculation})
    assert any(key.startswith("speculation") for key in written.lost)


def test_a_head_that_is_not_published_is_a_path_to_fill_in() -> None:
    assert '"model": "path/to/medusa-head"' in command(BASE | {"speculation": "medusa:k=3"}).text


@pytest.mark.feature("data_parallel")
@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"tp": 2, "dp": 4}, "vllm serve {} --tensor-parallel-size 2 --data-parallel-size 4"),
        ({"preset": "sglang", "tp": 2, "dp": 4},
         "python -m sglang.launch_server --model-path {} --tensor-parallel-size 8 --data-parallel-size 4 "
         "--enable-dp-attention"),
        ({"preset": "tensorrt-llm", "dp": 4, "ep": 4}, "trtllm-serve {} --tp_size 4 --enable_attention_dp --ep_size 4"),
    ],
)  # fmt: skip
def test_ranks_of_a_model_with_experts_are_counted_as_each_engine_does(settings: dict[str, Any], text: str) -> None:
    written = command(BASE | {"model": "deepseek-ai/DeepSeek-V3"} | settings)
    assert written.text == text.format("deepseek-ai/DeepSeek-V3")
    assert set(written.lost) == {"trace", "gpu"}


@pytest.mark.feature("data_parallel")
def test_ranks_of_a_model_without_experts_are_written_and_read_as_replicas() -> None:
    written = command(BASE | {"dp": 2})
    assert written.text == f"vllm serve {BASE['model']} --data-parallel-size 2"
    assert (written.lost["dp"], written.lost["replicas"]) == (2, 1)


def test_settings_around_the_engine_are_lost_by_name() -> None:
    settings = BASE | {"replicas": 2, "rate": 3, "router": "least-requests", "slo": "ttft:500"}
    lost = {"trace": "synth:rate=1", "gpu": "h100", "rate": 3.0, "replicas": 2, "router": {"name": "least-requests"}}
    assert command(settings).lost == lost | {"slo": {"ttft": 500.0}}


def test_a_scenario_without_trace_and_gpu_is_written_too() -> None:
    assert command({"model": BASE["model"], "preset": "vllm", "tp": 2}).lost == {}


def test_a_bundled_model_is_written_as_its_checkpoint() -> None:
    written = command({"model": "qwen3-8b", "preset": "vllm"})
    assert (written.text, written.lost) == ("vllm serve Qwen/Qwen3-8B", {"model": "qwen3-8b"})


def test_every_checkpoint_has_the_shape_of_its_model() -> None:
    for name, checkpoint in checkpoints().items():
        found = model_named(checkpoint)
        assert found is not None, checkpoint
        assert found.model == name
        assert ModelSpec.load(checkpoint).num_layers == ModelSpec.load(name).num_layers


def test_an_engine_without_a_known_command_is_refused() -> None:
    with pytest.raises(UserError, match=r"preset orca: no command of this engine is known, only of vllm-v0, vllm"):
        command(BASE | {"preset": "orca"})


@pytest.mark.feature("handoff")
def test_pools_are_refused_with_the_forms_that_hold_them() -> None:
    with pytest.raises(UserError, match="forms that hold them: dynamo, llm-d"):
        command(BASE | {"pd": "1x1:1x1"})
