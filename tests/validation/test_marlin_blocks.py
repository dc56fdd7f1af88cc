"""Marlin's measured times are a floor and so many equal blocks, and blocks go by the weights of an expert."""

from __future__ import annotations

import pytest

from servesim.cost import marlin
from servesim.cost.tables import KernelTables
from servesim.hardware.layers import Experts

Shape = tuple[int, int, int, int]


def shapes(gpu: str, kernel: str) -> dict[Shape, tuple[list[int], list[float]]]:
    """Tokens and ns of every (n, k, experts, top-k) measured."""
    rows = KernelTables.load(gpu).rows("moe", kernel)
    found: dict[Shape, tuple[list[int], list[float]]] = {}
    keys = zip(*(rows[name].tolist() for name in ("n", "k", "experts", "topk")), strict=True)
    for key, m, us in zip(keys, rows["m"].tolist(), rows["time_us"].tolist(), strict=True):
        tokens, times = found.setdefault(key, ([], []))
        tokens.append(m)
        times.append(us * 1e3)
    return found


@pytest.mark.parametrize("gpu", ["h100", "h200"])
@pytest.mark.parametrize(("kernel", "width"), [("int4", 2048), ("int4", 1024), ("mxfp4_marlin", 3072)])
def test_measured_times_are_a_floor_and_equal_blocks(gpu: str, kernel: str, width: int) -> None:
    (shape, (tokens, times)) = next(item for item in shapes(gpu, kernel).items() if item[0][0] == width)
    experts = Experts(shape[2], shape[3], width)
    blocks = marlin.fit(tokens, times, experts)
    assert blocks is not None
    errors = []
    for m, ns in zip(tokens, times, strict=True):
        rows = m * experts.per_token / experts.count
        if rows >= marlin.LOADED:
            taken = blocks.floor + marlin.measured_blocks(m, experts) * blocks.each[marlin.height(rows)]
            errors.append(abs(taken / ns - 1.0))
    mean = sum(errors) / len(errors)
    print(f"{gpu} {kernel} {width}: {len(errors)} steps off by {mean:.1%} in the mean, at most {max(errors):.1%}")
    assert mean < 0.03
    assert max(errors) < 0.12


@pytest.mark.parametrize("gpu", ["h100", "h200"])
@pytest.mark.parametrize(("kernel", "wide"), [("int4", 2048), ("mxfp4_marlin", 3072)])
def test_a_block_of_half_the_width_takes_half_the_time(gpu: str, kernel: str, wide: int) -> None:
    found = shapes(gpu, kernel)
    fits = {}
    for (n, _, count, per_token), (tokens, times) in found.items():
        if n in (wide, wide // 2):
            fits[n] = marlin.fit(tokens, times, Experts(count, per_token, n))
    one, half = fits[wide], fits[wide // 2]
    assert one is not None
    assert half is not None
    ratios = {h: round(2 * half.each[h] / one.each[h], 3) for h in marlin.HEIGHTS}
    print(f"{gpu} {kernel}: twice the time of a block of {wide // 2} over that of {wide}, by height: {ratios}")
    assert all(0.98 < ratio < 1.08 for ratio in ratios.values())
