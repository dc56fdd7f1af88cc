"""The twin of a day of production traffic against the clients' own rates, burstiness and lengths."""

from __future__ import annotations

import ast
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from servesim.traces import load_preset
from servesim.traces.presets.servegen import _profile

DATA = Path(__file__).parents[3] / "shared" / "traces" / "servegen"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the original clients (../shared) are not here")
LEVELS = (25, 50, 75, 90, 95, 99)


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("servegen")
    for name in ("servegen_all_client_rate_traces.tar.xz", "servegen_datasets_language_day1.tar.xz"):
        with tarfile.open(DATA / name) as archive:
            archive.extractall(folder, [m for m in archive if "/m-large/" in m.name], filter="data")
    return sorted((folder / "data/language/m-large").glob("chunk-*-trace.csv"))


def percentiles(files: list[Path], rates: np.ndarray, side: str) -> list[int]:
    """Of all requests of the clients whose lengths are known, by their rates in each quarter of the day."""
    mass: dict[int, float] = {}
    for path, rate in zip(files, rates, strict=True):
        beside = path.with_name(path.name.replace("-trace.csv", "-dataset.json"))
        for start, window in (json.loads(beside.read_text()) if beside.exists() else {}).items():
            quarter = int(start) // 21_600
            for tokens, share in ast.literal_eval(window[side]).items():
                mass[tokens] = mass.get(tokens, 0.0) + share * rate[quarter * 36 : quarter * 36 + 36].sum()
    tokens = np.array(sorted(mass))
    reached = np.cumsum([mass[t] for t in tokens.tolist()])
    return [int(tokens[np.searchsorted(reached, reached[-1] * level / 100)]) for level in LEVELS]


@pytest.fixture(scope="module")
def profiles(clients: list[Path]) -> tuple[np.ndarray, np.ndarray]:
    rates, cvs = (np.array(column) for column in zip(*map(_profile, clients), strict=True))
    return rates, cvs


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 7])
def test_the_twin_of_a_day_has_its_rates_and_lengths(
    clients: list[Path], profiles: tuple[np.ndarray, np.ndarray], seed: int
) -> None:
    scale, rates = 0.02, profiles[0]
    twin = load_preset(f"servegen-m-large:scale={scale}", seed=seed)
    counts = np.bincount(twin.arrival_ns // (600 * 10**9), minlength=144)
    assert counts / (600 * scale) == pytest.approx(rates.sum(axis=0), rel=0.05)
    for drawn, side in ((twin.prompt_len, "input_tokens"), (twin.output_len, "output_tokens")):
        assert np.percentile(drawn, LEVELS) == pytest.approx(percentiles(clients, rates, side), rel=0.1)


@pytest.mark.slow
def test_the_clients_of_the_twin_are_as_bursty_as_the_originals(profiles: tuple[np.ndarray, np.ndarray]) -> None:
    rates, cvs = profiles
    bursty = all_gaps = 0.0
    for window in range(4, 144, 20):
        twin = load_preset(f"servegen-m-large:scale=1,start={window * 600},seconds=600")
        tenant = np.unique(np.array(twin.labels["tenant"]), return_inverse=True)[1]
        for client in range(tenant.max() + 1):
            gaps = np.diff(twin.arrival_ns[tenant == client])
            if len(gaps) > 1 and gaps.mean() > 0:
                bursty, all_gaps = bursty + len(gaps) * gaps.std() / gaps.mean(), all_gaps + len(gaps)
    assert bursty / all_gaps == pytest.approx((rates * cvs).sum() / rates.sum(), rel=0.2)
