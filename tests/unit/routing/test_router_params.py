"""Parameters of routers that make no sense are refused in one line."""

from __future__ import annotations

import pytest

from servesim.contracts import build_params, routers
from servesim.errors import UserError


@pytest.mark.parametrize(
    ("router", "name", "value", "words"),
    [
        ("sglang-cache-aware", "cache_threshold", 1.5, "at most 1"),
        ("smg-cache-aware", "balance_rel_threshold", -1, "at least 0"),
        ("llm-d", "affinity_filter", 7, "at most 1"),
        ("vllm-router-cache-aware", "chars_per_token", 0, "more than 0"),
        ("dynamo-kv", "router_temperature", -0.1, "at least 0"),
        ("manual", "max_idle_s", float("inf"), "finite"),
    ],
)
def test_a_parameter_beyond_its_range_is_refused(router: str, name: str, value: float, words: str) -> None:
    cls, _ = routers.resolve(router)
    with pytest.raises(UserError, match=f"{name}.*{words}"):
        build_params(router, cls.Params, {name: value})


def test_ends_of_ranges_are_taken() -> None:
    cls, _ = routers.resolve("sglang-cache-aware")
    assert build_params("sglang-cache-aware", cls.Params, {"cache_threshold": 1}).cache_threshold == 1
