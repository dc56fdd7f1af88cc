"""Which fold speaks for a case: by what of it was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from servesim.intervals.case import Case, features, model_key, version_key
from servesim.intervals.distance import kind_of, label

CASE = Case("vllm", "0.18.0", "llama-3.1-70b", "h200", "fp8", 4, 1, 20.0, 1000.0, 120.0, 12.0, 0.02)
KNOWN = {name: [label(CASE, name)] for name in ("engine", "precision", "version", "model", "gpu", "deployment")}


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({}, "server"),
        ({"in_flight": 500.0, "prompt": 9000.0}, "server"),
        ({"tp": 8}, "deployment"),
        ({"model": "qwen3-14b"}, "model"),
        ({"version": "0.33.0"}, "version"),
        ({"gpu": "a100"}, "gpu"),
        ({"model": "qwen3-14b", "version": "0.33.0"}, "model and version"),
    ],
)
def test_the_fold_is_the_one_that_leaves_out_what_is_unknown(changed: dict[str, object], kind: str) -> None:
    found, why = kind_of(replace(CASE, **changed), KNOWN)  # type: ignore[arg-type]
    assert found is not None
    assert (found.name, why) == (kind, "")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"engine": "orca"}, "no server of orca was measured"),
        ({"precision": "int4"}, "no server with int4 weights was measured"),
        ({"gpu": "a100", "version": "0.33.0"}, "no server with vllm 0.33.0 and GPU a100 was measured"),
        ({"gpu": "a100", "model": "opt-13b"}, "no server with model opt-13b and GPU a100 was measured"),
    ],
)
def test_what_no_fold_leaves_out_gets_words(changed: dict[str, object], words: str) -> None:
    assert kind_of(replace(CASE, **changed), KNOWN) == (None, words)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("written", "key"),
    [
        ("0.11", "0.11.0"),
        ("v0.11.0", "0.11.0"),
        ("0.11.0+cu128", "0.11.0"),
        ("0.10", "0.10.0"),
        ("0.9", "0.9.0"),
        ("1.2.0rc6.post2", "1.2.0rc6.post2"),
        ("0.5.10.post1", "0.5.10.post1"),
        ("nightly-0123abc", "nightly-0123abc"),
        ("", ""),
    ],
)
def test_a_version_is_the_same_however_it_is_written(written: str, key: str) -> None:
    assert version_key(written) == key


def test_a_version_is_one_of_its_engine() -> None:
    assert kind_of(replace(CASE, engine="sglang"), {**KNOWN, "engine": ["sglang", "vllm"]})[0] is not None
    found = kind_of(replace(CASE, engine="sglang"), {**KNOWN, "engine": ["sglang", "vllm"]})[0]
    assert found is not None
    assert found.name == "version"


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("llama-3.1-8b", "llama-3.1-8b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("Qwen/Qwen3-235B-A22B-FP8", "qwen3-235b-a22b"),
        ("/models/MiniMax-M2.5/config.json", "minimax-m2.5"),
        ("configs/MiniMaxAI--MiniMax-M2.5_config.json", "minimax-m2.5"),
        ("qwen3-0.6b", "qwen3-0.6b"),
    ],
)
def test_a_model_has_one_key_however_it_is_named(name: str, key: str) -> None:
    assert model_key(name) == key


def test_features_say_each_kind_once_and_bands_include_their_largest_value() -> None:
    found = dict(features(replace(CASE, in_flight=8.0, extrapolated=0.05)))
    assert len(found) == len(list(features(CASE)))
    assert found["load"] == "load: 1-8"
    assert found["beyond"] == "beyond: 0-5 %"
    assert found["ttft"] == "ttft: long"
    assert dict(features(replace(CASE, ttft_ms=99.9)))["ttft"] == "ttft: short"
