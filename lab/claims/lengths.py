"""Request lengths of published workloads: statistics in place of the data sets themselves.

`python -m servesim_lab.claims.lengths ROWS.csv` builds the ShareGPT table from a file with the columns
num_prefill_tokens and num_decode_tokens.
"""

from __future__ import annotations

import json
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from servesim import draws
from servesim.workload.trace import Ints, Trace

MAX_LEN = 2048
SHAREGPT_MEANS = (161.31, 337.99)
"""Mean prompt and output tokens of ShareGPT as sampled for PagedAttention (SOSP'23, section 6.1)."""
ALPACA_MEANS = (19.31, 58.45)
ALPACA_SIGMA = (0.6, 0.9)
"""Sigma of the logarithms, assumed because the paper gives only means."""
SOURCE = "https://github.com/AKafakA/vidur_opt_scheduler data/trace_data/sharegpt (MIT)"
SHAREGPT_FILE = "sharegpt-sosp23.json"


def sharegpt(count: int, seed: int) -> tuple[Ints, Ints]:
    """Draw prompt and output lengths like ShareGPT's, with its rows weighted to the published means."""
    from servesim.traces.presets.tables import JointTable

    text = resources.files("servesim_lab.claims").joinpath(SHAREGPT_FILE).read_text(encoding="utf-8")
    drawn = JointTable.from_json(json.loads(text)["lengths"]).draw(count, seed, "sharegpt lengths")
    return clipped(drawn["prompt"], drawn["output"])


def alpaca(count: int, seed: int) -> tuple[Ints, Ints]:
    """Draw lognormal lengths with Alpaca's published means."""
    columns = []
    for name, mean, sigma in zip(("prompt", "output"), ALPACA_MEANS, ALPACA_SIGMA, strict=True):
        z = draws.normal(seed, f"alpaca {name}", np.arange(count))
        columns.append(np.rint(np.exp(np.log(mean) - sigma**2 / 2 + sigma * z)).astype(np.int64))
    return clipped(*columns)


def clipped(prompt: Ints, output: Ints) -> tuple[Ints, Ints]:
    """Clip lengths to at least one token each, and in total to at most the model's number of positions."""
    prompt = np.clip(prompt, 1, MAX_LEN - 1)
    return prompt, np.clip(output, 1, MAX_LEN - prompt)


def poisson(name: str, lengths: tuple[Ints, Ints], rate: float, seed: int) -> Trace:
    """Build requests with the given lengths and Poisson arrivals at a mean rate per second; each ends at its cap."""
    prompt, output = lengths
    gaps = -np.log(draws.uniform(seed, "arrival gaps", np.arange(len(prompt)))) / rate
    zeros = np.zeros(len(prompt), dtype=np.int64)
    arrivals = np.rint(np.cumsum(gaps) * 1e9).astype(np.int64)
    return Trace(
        name=name,
        arrival_ns=arrivals,
        prompt_len=prompt,
        output_len=output,
        max_tokens=output,
        stop=zeros.astype(bool),
        priority=zeros,
    )


def fit_sharegpt(path: Path) -> dict[str, Any]:
    """Return statistics of the rows that fit the model, tilted (weights exp(a prompt + b output)) to the published
    means."""
    import csv

    from scipy.optimize import fsolve

    from servesim.traces.presets.tables import JointTable

    with path.open(newline="") as file:
        rows = [(int(r["num_prefill_tokens"]), int(r["num_decode_tokens"])) for r in csv.DictReader(file)]
    data = np.array([(p, o) for p, o in rows if p and o and p + o <= MAX_LEN], dtype=np.int64)

    def weights(tilt: Any) -> Any:
        weight = np.exp(data @ tilt / 1000)
        return weight / weight.sum()

    tilt = fsolve(lambda t: weights(t) @ data - SHAREGPT_MEANS, np.zeros(2))
    copies = np.cumsum(weights(tilt)) * 20 * len(data)  # rows repeated in proportion to their weights
    chosen = np.repeat(data, np.diff(np.rint(copies), prepend=0).astype(int), axis=0)
    table = JointTable.fit(chosen[:, 0], 20, output=chosen[:, 1])
    return {
        "original": {
            "file": path.name,
            "source": SOURCE,
            "rows": len(data),
            "tilt_per_1000_tokens": np.round(tilt, 6).tolist(),
        },
        "lengths": table.to_json(),
    }


if __name__ == "__main__":
    print(json.dumps(fit_sharegpt(Path(sys.argv[1])), separators=(",", ":")))
