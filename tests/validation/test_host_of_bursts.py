"""Host terms of a published server (../shared/groundtruth/gpustack), fitted to bursts and judged on longer loads."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

from servesim.calibrate.bursts import SHORT_PROMPT, fit_bursts, replayed, write
from servesim.cost.host import HostTerms
from servesim.experiments.accuracy.reading import read

RUNS = Path(__file__).parents[3] / "shared/groundtruth/gpustack/runs.csv"


@pytest.mark.slow
@pytest.mark.skipif(not RUNS.is_file(), reason="no ../shared/groundtruth/gpustack")
def test_terms_fitted_to_short_bursts_make_longer_loads_of_that_server_truer(tmp_path: Path) -> None:
    """DeepSeek-R1 on eight H200 under vLLM: 219/201 and 127/4 at once and 228/213 with four clients are fitted to; 100
    of 31,999/100, 500 of 3,995/200 and 500 of 1,997/100 are judged, all of which took longer than simulated."""
    cells = [c for c in read([RUNS]) if c.id.startswith("deepseek-r1_h200") and c.engine == "vllm"]
    given, judged = ([c for c in cells if (c.isl <= SHORT_PROMPT) == short] for short in (True, False))
    assert len(judged) == 3
    path = tmp_path / "host.yaml"
    write(path, fit_bursts(given, HostTerms.load("vllm-0.12-h100")))

    def errors(host: Path | None) -> tuple[float, float]:
        found = [(cell, replayed(cell, host)) for cell in judged]
        return (
            fmean(abs((ours.ttft_ms or 0.0) / cell.ttft_ms - 1) for cell, ours in found),
            fmean(abs((ours.tpot_ms or 0.0) / cell.tpot_ms - 1) for cell, ours in found),
        )

    for before, after in zip(errors(None), errors(path), strict=True):
        assert after < before
