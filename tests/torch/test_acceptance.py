"""Acceptance on real models: what is counted on one greedy answer is what speculative decoding meets."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra calibrate is not installed")
transformers = pytest.importorskip("transformers", reason="the extra calibrate is not installed")

from servesim.calibrate.acceptance import Prompt  # noqa: E402
from servesim.calibrate.acceptance_table import Counts, early_exit, lookup  # noqa: E402
from servesim.calibrate.greedy import GreedyModel, find_model  # noqa: E402
from servesim.errors import UserError  # noqa: E402
from servesim.policies.speculation.ngram import propose  # noqa: E402

LAYERS, K, TOKENS = 4, 3, 60


class Words:
    """A tokenizer of numbers, such as "3 1 4"."""

    def apply_chat_template(self, chat: list[dict[str, str]], **_: Any) -> dict[str, Any]:
        return {"input_ids": torch.tensor([[int(word) for word in chat[0]["content"].split()]])}

    def decode(self, tokens: list[int]) -> str:
        return " ".join(map(str, tokens))


@pytest.fixture(scope="module")
def model() -> Any:
    """Random weights; upper layers change little, so that some early drafts are right."""
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=48, hidden_size=32, intermediate_size=64, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, eos_token_id=None, pad_token_id=0, initializer_range=0.3,
    )  # fmt: skip
    made = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for layer in made.model.layers[2:]:
            layer.self_attn.o_proj.weight *= 0.3
            layer.mlp.down_proj.weight *= 0.3
    return made


def told(model: Any) -> Any:
    return GreedyModel(model, Words(), {}).answer(Prompt("p", "d", "3 1 4 1 5 9 2 6"), TOKENS)


@torch.no_grad()
def next_token(model: Any, tokens: list[int], layers: int = LAYERS) -> int:
    whole = model.model.layers
    try:
        model.model.layers = whole[:layers]
        return int(model(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax())
    finally:
        model.model.layers = whole


def decode_speculatively(model: Any, prompt: list[int], draft: Any) -> tuple[list[int], Counts]:
    """The real thing, one token at a time: draft up to K, keep those the target gives itself, add the target's own."""
    output, counts = [next_token(model, prompt)], Counts(K, prompts=1)
    while len(output) + K <= TOKENS:
        drafts, accepted = draft(prompt + output), 0
        while accepted < len(drafts) and next_token(model, prompt + output) == drafts[accepted]:
            output.append(drafts[accepted])
            accepted += 1
        output.append(next_token(model, prompt + output))
        counts.steps += 1
        for j in range(len(drafts)):
            counts.proposed[j] += 1
            counts.reached[j] += j <= accepted
            counts.accepted[j] += j < accepted
    return output, counts


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_early_exit_is_counted_as_drafting_with_the_first_layers_goes(model: Any, layers: int) -> None:
    answer = told(model)

    def draft(tokens: list[int]) -> list[int]:
        drafts: list[int] = []
        for _ in range(K):
            drafts.append(next_token(model, tokens + drafts, layers))
        return drafts

    output, real = decode_speculatively(model, answer.prompt_tokens, draft)
    counts = Counts(K)
    counts.walk(TOKENS, early_exit(answer, K, layers))
    common = min(len(output), TOKENS)
    assert output[:common] == answer.output_tokens[:common]
    assert counts == real
    assert 0 < sum(counts.accepted) < K * counts.steps or layers == 1


def test_lookup_is_counted_as_prompt_lookup_goes(model: Any) -> None:
    answer = told(model)
    output, real = decode_speculatively(model, answer.prompt_tokens, lambda tokens: propose(tokens, 1, 3, K))
    counts = Counts(K)
    counts.walk(TOKENS, lookup(answer, K, 1, 3))
    assert output[:TOKENS] == answer.output_tokens[: len(output)]
    assert counts == real
    assert sum(counts.accepted) > 0


def test_an_exit_after_the_last_layer_is_the_model(model: Any) -> None:
    assert told(model).exits[-1] == "1" * TOKENS


@pytest.mark.slow
def test_the_real_model_answers_and_exits_agree_more_with_depth() -> None:
    pytest.importorskip("gguf", reason="the extra calibrate is not installed")
    try:
        find_model("smollm2")
    except UserError as error:
        pytest.skip(str(error))
    real = GreedyModel.load("smollm2", 1)
    assert {type(value) for value in real.about.values()} == {str}, "as YAML takes them"
    answer = real.answer(Prompt("p", "qa", "What is the capital of France?"), 12)
    assert "Paris" in answer.text
    right = [bits.count("1") for bits in answer.exits]
    assert len(right) == 30
    assert right[-1] == len(answer.output_tokens)
    assert right[4] <= right[24] < right[-1]
