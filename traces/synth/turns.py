"""Synthetic conversations: prompts that repeat the whole conversation so far."""

from __future__ import annotations

from typing import Any

import numpy as np

from servesim import draws
from servesim.errors import UserError
from servesim.workload.trace import COMPLETION, After, Content, Ints

from ..spec import Call

SECOND = 1_000_000_000
LONGEST_S = 10_000_000
"""Maximum mean pause in seconds, the same as the maximum wait of a client in a scenario."""


def draw(call: Call, arrival_ns: Ints, new: Ints, output: Ints, content: Content | None, seed: int) -> dict[str, Any]:
    """Return the columns of a trace whose rows are turns, with `turns` successive rows per session (the last session
    may have fewer).

    Sessions begin at the arrivals, in order. The prompt of a later turn is the whole conversation so far, outputs
    included, plus `new` tokens; the turn follows the previous output after an exponential pause with mean `think` s.
    `content` applies to first turns (shared prefixes); later turns add their own texts.
    """
    if call.name != "chat":
        raise UserError(f"synth: turns={call.name}: write turns=chat(turns=5,think=10)")
    args = call.floats("turns=5 think=10")
    turns = int(args["turns"])
    if turns != args["turns"] or turns < 1 or not 0 <= args["think"] <= LONGEST_S:
        raise UserError(
            f"synth: turns=chat: 'turns' must be a whole number of at least 1, and "
            f"'think' must be from 0 to {LONGEST_S:,} s"
        )
    rows = np.arange(len(new))
    first = rows // turns * turns
    pause = np.rint(draws.exponential(seed, "think", rows) * args["think"] * SECOND).astype(np.int64)
    runs: list[list[tuple[int, int]]] = []
    free = len(new) + (int(content.ids.max()) + 1 if content is not None else 0)
    for row, (begin, tokens) in enumerate(zip(first.tolist(), new.tolist(), strict=True)):
        if row == begin:
            runs.append(content.runs(row) if content is not None else [(free + row, tokens)])
        else:
            runs.append([*runs[-1], (-row, int(output[row - 1])), (free + row, tokens)])
    flat = np.array([run for row_runs in runs for run in row_runs], dtype=np.int64)
    offsets = np.concatenate(([0], np.cumsum([len(row_runs) for row_runs in runs]))).astype(np.int64)
    edges = [[(row - 1, COMPLETION, int(pause[row]), 0)] if row != first[row] else [] for row in rows.tolist()]
    sessions = tuple([f"session-{begin // turns}" for begin in first.tolist()])
    return {
        "arrival_ns": arrival_ns[first // turns],  # sessions arrive at the given rate, in order
        "prompt_len": np.add.reduceat(flat[:, 1], offsets[:-1]),
        "output_len": output,
        "content": Content(offsets, np.ascontiguousarray(flat[:, 0]), np.ascontiguousarray(flat[:, 1])),
        "after": After.of(edges),
        "labels": {"session": sessions},
    }
