"""Shared prefixes: common text at the beginning of prompts."""

from __future__ import annotations

import numpy as np

from servesim import draws
from servesim.errors import UserError
from servesim.workload.trace import Content, Ints

from ..spec import Call
from .lengths import MAX_TOKENS

MOST_GROUPS = 10_000_000


def draw(call: Call, prompt_len: Ints, seed: int, first: int = 0) -> Content:
    """Draw the content of prompts, whose lengths stay unchanged; a sharing prompt of L tokens begins with min(length,
    L) tokens of its prefix.

    `first` is the number of the first row. Content ids 0..groups-1 are the prefixes, and groups + i is request i's own
    text.
    """
    if call.name != "shared":
        raise UserError(f"synth: prefix={call.name}: write prefix=shared(groups=10,length=256,share=1,zipf=1)")
    args = call.floats("groups=1 length share=1 zipf=1")
    groups, length = int(args["groups"]), int(args["length"])
    if groups != args["groups"] or length != args["length"] or groups < 1 or length < 1:
        raise UserError("synth: prefix=shared: 'groups' and 'length' must be whole numbers of at least 1")
    if groups > MOST_GROUPS or length > MAX_TOKENS:
        raise UserError(f"synth: prefix=shared: at most {MOST_GROUPS:,} groups and {MAX_TOKENS:,} tokens")
    if not 0 <= args["share"] <= 1 or args["zipf"] < 0:
        raise UserError("synth: prefix=shared: 'share' must be from 0 to 1, and 'zipf' must be at least 0")
    rows = np.arange(first, first + len(prompt_len))
    weights = (1.0 + np.arange(groups)) ** -args["zipf"]
    edges = np.cumsum(weights / weights.sum())
    group = np.minimum(np.searchsorted(edges, draws.uniform(seed, "prefix group", rows)), groups - 1)
    sharing = draws.uniform(seed, "prefix share", rows) < args["share"]
    common = np.where(sharing, np.minimum(length, prompt_len), 0)
    lengths = np.stack([common, prompt_len - common], axis=1)
    ids = np.stack([group, groups + rows], axis=1)
    kept = lengths > 0
    offsets = np.concatenate(([0], np.cumsum(kept.sum(axis=1))))
    return Content(offsets.astype(np.int64), ids[kept].astype(np.int64), lengths[kept])
