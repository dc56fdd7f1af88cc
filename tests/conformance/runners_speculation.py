"""Speculation: proposers, draft lengths and acceptance, as tables of inputs and outputs."""

from __future__ import annotations

from typing import Any

import pytest

from servesim.policies.speculation._length import by_batch_size
from servesim.policies.speculation.ngram import propose
from servesim.traces.acceptance.independent import expected_tokens
from servesim.traces.acceptance.synthetic import acceptance_rates


class TableRun:
    """Cases without a script: each row of a table holds by itself."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.config, self.table = case["config"], case["table"]

    def run(self, case: dict[str, Any]) -> None:
        for number, row in enumerate(self.table):
            got, expected = self.look(row)
            assert got == expected, f"row {number}: {got}, expected {expected}"

    def look(self, row: dict[str, Any]) -> tuple[Any, Any]:
        raise NotImplementedError


class NgramRun(TableRun):
    def look(self, row: dict[str, Any]) -> tuple[Any, Any]:
        limit = row.get("max_model_len", self.config.get("max_model_len"))
        return propose(row["tokens"], row["min_n"], row["max_n"], row["k"], limit), row["expect"]


class DynamicKRun(TableRun):
    def look(self, row: dict[str, Any]) -> tuple[Any, Any]:
        return by_batch_size(self.config["schedule"], row["batch"], self.config["k_max"]), row["expect_k"]


class LeviathanRun(TableRun):
    def look(self, row: dict[str, Any]) -> tuple[Any, Any]:
        return expected_tokens(row["alpha"], row["k"]), pytest.approx(row["expect"], abs=1e-6)


class SyntheticRun(TableRun):
    def look(self, row: dict[str, Any]) -> tuple[Any, Any]:
        return acceptance_rates(row["length"], row["k"]), pytest.approx(row["expect_rates"], abs=1e-9)


RUNNERS = {
    "ngram_proposer": NgramRun,
    "dynamic_k_lookup": DynamicKRun,
    "leviathan_expected_tokens": LeviathanRun,
    "synthetic_acceptance_rates": SyntheticRun,
}
