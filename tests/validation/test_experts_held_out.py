"""Experts of shapes held out of the tables: whole families (hidden size, experts, top-k) predicted from the others."""

from __future__ import annotations

from statistics import median

import pytest

from servesim.cost.formula import Roofline
from servesim.cost.linear import GemmTables
from servesim.cost.moe import experts_curve
from servesim.cost.tables import KernelTables
from servesim.hardware import Experts, Gpu

FAMILY = ("k", "experts", "topk")


@pytest.mark.parametrize(("gpu", "dtype"), [("h100", "bf16"), ("h200", "fp8_block"), ("a100", "bf16"), ("h200", "fp8")])
def test_held_out_families_of_experts(gpu: str, dtype: str) -> None:
    tables, roofline = KernelTables.load(gpu), Roofline(Gpu.load(gpu))
    tables = tables if dtype != "fp8" else tables.with_rows("moe", "fp8_block", {})  # that kernel would be taken
    rows = tables.rows("moe", dtype)
    errors, formula = [], []
    for family in sorted(set(zip(*(rows[name].tolist() for name in FAMILY), strict=True))):
        of = (rows["k"] == family[0]) & (rows["experts"] == family[1]) & (rows["topk"] == family[2])
        rest = tables.with_rows("moe", dtype, {name: column[~of] for name, column in rows.items()})
        for size in sorted(set(rows["n"][of].tolist())):
            experts, its = Experts(family[1], family[2], size), of & (rows["n"] == size)
            curves = [
                experts_curve(GemmTables(t, roofline, roofline), experts, family[0], 1, dtype) for t in (rest, None)
            ]
            for m, us in zip(rows["m"][its].tolist(), rows["time_us"][its].tolist(), strict=True):
                errors.append(abs(curves[0].at(m) / (us * 1e3) - 1.0))
                formula.append(abs(curves[1].at(m) / (us * 1e3) - 1.0))
    print(f"{gpu} {dtype}: median {median(errors):.1%} of {len(errors)} calls, by formula alone {median(formula):.1%}")
    assert median(errors) < 0.09
    assert median(errors) < 0.4 * median(formula)
