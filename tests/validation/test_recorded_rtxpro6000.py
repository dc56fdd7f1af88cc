"""A recorded vLLM server on an RTX PRO 6000, priced from the kernel profile of the same GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from servesim.calibrate.importers.llmservingsim import import_llmservingsim
from servesim.experiments.validate import Comparison, validate


@pytest.fixture(scope="module")
def recorded(shared_data: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    tables = tmp_path_factory.mktemp("tables")
    import_llmservingsim(shared_data("profiles/llmservingsim"), tables)
    (found,) = validate(shared_data("groundtruth/llmservingsim_rtxpro6000"), tables=tables)
    return found


def _mean(errors: dict[str, Any]) -> dict[str, float]:
    return {metric: abs(errors[metric]["mean"]) for metric in ("ttft", "tpot", "e2el")}


def test_kernels_alone(recorded: Comparison) -> None:
    assert recorded.zero_shot is not None
    error = _mean(recorded.zero_shot["error"])
    print(recorded.zero_shot["error"])
    assert error["ttft"] < 0.10
    assert error["tpot"] < 0.04
    assert error["e2el"] < 0.05


def test_with_host_terms(recorded: Comparison) -> None:
    assert recorded.host
    assert recorded.error is not None
    error = _mean(recorded.error)
    print(recorded.error)
    assert error["ttft"] < 0.04
    assert error["tpot"] < 0.015
    assert error["e2el"] < 0.02
