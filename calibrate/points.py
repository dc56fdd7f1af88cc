"""Points of a profile: the operators of a model's shard on grids of sizes, most important first."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from servesim.cost.grid import HeadShape
from servesim.errors import UserError
from servesim.hardware.model import ModelSpec, check_tp, kv_heads_per_gpu

COARSE, FINE, HELD_OUT = range(3)
"""Passes over the sets of points: first a usable table, then the points in between, then the points that
    test the table."""

TOKENS = (
    1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 65, 96, 128, 129, 160, 192, 224, 256, 257, 320, 384, 448, 512, 513, 640, 768,
    896, 1024, 1280, 1536, 2048, 3072, 4096, 6144, 8192,
)  # fmt: skip
"""Token counts: closely spaced, since times jump at tile boundaries; some are one token past a boundary."""
_FEW_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
_OFF_GRID = (7, 37, 200, 300, 700, 1100, 2500, 5000)
_SAMPLED = 1024
"""Maximum number of LM head and sampler rows."""
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_CONTEXTS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
_CHUNKS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
_PASTS = (0, 128, 512, 2048, 8192, 32768)
_TOGETHER = tuple(product((2, 4, 8), (32, 128, 512, 1024)))
"""Prompts in one call, as pairs of the number of prompts and the tokens of each."""
_MIXED = tuple(product((32, 128, 512, 2048), (2, 8, 32, 128), (64, 256, 1024, 4096)))
"""Tokens of a prompt, number of decodes next to it, and context of each decode."""
_UNEVEN = 40


@dataclass(frozen=True)
class Limits:
    """Extent of the grids."""

    tokens: int
    context: int
    batch: int
    kv_bytes: int
    """Maximum KV bytes of one call."""
    mask: int | None = None
    """Maximum product of queries and keys in one call, set if a dense mask makes the cost proportional to it."""


@dataclass(frozen=True)
class Point:
    """One size of one operator. `pieces` are the sequences of an attention call as (new, past, count)."""

    set: str
    """Name of the set that the point is saved with: `gemm`, `attention_decode`, ...."""
    op: str
    dtype: str
    stage: int
    m: int | None = None
    n: int | None = None
    k: int | None = None
    pieces: tuple[tuple[int, int, int], ...] = ()
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None

    @property
    def key(self) -> str:
        """Key that identifies the point in any set or pass."""
        fields = {name: v for name, v in asdict(self).items() if v not in (None, ()) and name not in ("set", "stage")}
        return json.dumps(fields, sort_keys=True)

    @property
    def shape(self) -> HeadShape:
        """Heads of an attention call or a rotary embedding."""
        assert self.heads is not None and self.kv_heads is not None and self.head_dim is not None  # noqa: PT018
        return HeadShape(self.heads, self.kv_heads, self.head_dim)

    @property
    def sequences(self) -> list[tuple[int, int]]:
        """Tuples (new, past) for every sequence of an attention call."""
        return [(new, past) for new, past, count in self.pieces for _ in range(count)]


@dataclass(frozen=True)
class Shard:
    """One GPU's part of a dense decoder."""

    model: ModelSpec
    tp: int
    dtype: str

    def __post_init__(self) -> None:
        check_tp(self.model, self.tp)
        if self.model.experts is not None or self.model.latent is not None or self.model.sliding_window:
            raise UserError(f"{self.model.name}: only dense models with full attention can be profiled")

    @property
    def heads(self) -> HeadShape:
        """Attention heads on this GPU."""
        model = self.model
        return HeadShape(model.num_heads // self.tp, kv_heads_per_gpu(model, self.tp), model.head_dim)

    @property
    def wide(self) -> str:
        """Data format of everything that is never quantized: activations, KV cache, LM head."""
        return "fp32" if self.dtype == "fp32" else "bf16"

    def linears(self) -> dict[str, tuple[int, int, str]]:
        """Return (n, k, dtype) of the linear layers, the LM head last."""
        model, heads = self.model, self.heads
        q, kv = heads.heads * heads.head_dim, heads.kv_heads * heads.head_dim
        inter, hidden = model.intermediate_size // self.tp, model.hidden_size
        return {
            "qkv": (q + 2 * kv, hidden, self.dtype),
            "attention_out": (hidden, q, self.dtype),
            "up": ((2 if model.gated_mlp else 1) * inter, hidden, self.dtype),
            "down": (hidden, inter, self.dtype),
            "lm_head": (model.vocab_size // self.tp, hidden, self.wide),
        }

    def small(self) -> dict[str, int]:
        """Return the widths of the small operators."""
        heads, model = self.heads, self.model
        return {
            "norm": model.hidden_size,
            "activation": model.intermediate_size // self.tp,
            "rotary": (heads.heads + heads.kv_heads) * heads.head_dim,
            "kv_write": heads.kv_heads * heads.head_dim,
            "embedding": model.hidden_size,
            "sampler": model.vocab_size,
        }


def points(shards: Iterable[Shard], limits: Limits) -> list[Point]:
    """Return all points, each shape once, in the order of measurement."""
    found: dict[str, Point] = {}
    for shard in shards:
        for point in _of_shard(shard, limits):
            found.setdefault(point.key, point)
    # sets in order of first occurrence, within each pass
    order = {name: i for i, name in enumerate(dict.fromkeys(p.set for p in found.values()))}
    return sorted(found.values(), key=lambda p: (p.stage, order[p.set]))


def _of_shard(shard: Shard, limits: Limits) -> Iterator[Point]:
    yield from _gemms(shard, limits)
    yield from _decode(shard, limits)
    yield from _prefill(shard, limits)
    yield from _small(shard, limits)
    yield from _mixed(shard, limits)
    yield from _uneven(shard, limits)


def _gemms(shard: Shard, limits: Limits) -> Iterator[Point]:
    for name, (n, k, dtype) in shard.linears().items():
        most = min(limits.tokens, _SAMPLED) if name == "lm_head" else limits.tokens
        for m in (*TOKENS, *_OFF_GRID):
            if m <= most:
                stage = HELD_OUT if m in _OFF_GRID else COARSE if m in _FEW_TOKENS else FINE
                yield Point("gemm", "gemm", dtype, stage, m, n, k)


def _small(shard: Shard, limits: Limits) -> Iterator[Point]:
    for op, width in shard.small().items():
        most = min(limits.tokens, _SAMPLED) if op == "sampler" else limits.tokens
        heads = asdict(shard.heads) if op == "rotary" else {}
        for m in TOKENS:
            if m <= most:
                stage = COARSE if m in _FEW_TOKENS[::2] else FINE
                yield Point("small", op, shard.wide, stage, m, width, **heads)


def _attention(shard: Shard, limits: Limits, op: str, stage: int, *pieces: tuple[int, int, int]) -> Iterator[Point]:
    """Yield the point, unless a sequence or the whole call exceeds the limits."""
    queries = sum(new * count for new, _, count in pieces)
    keys = sum((new + past) * count for new, past, count in pieces)
    heads = shard.heads
    size = keys * heads.kv_heads * heads.head_dim * (8 if shard.wide == "fp32" else 4)
    small = max(new for new, _, _ in pieces) <= limits.tokens and max(past for _, past, _ in pieces) <= limits.context
    if small and size <= limits.kv_bytes and (limits.mask is None or queries * keys <= limits.mask):
        yield Point(op, op, shard.wide, stage, pieces=pieces, **asdict(heads))


def _decode(shard: Shard, limits: Limits) -> Iterator[Point]:
    for batch, context in product(_BATCHES, _CONTEXTS):
        if batch <= limits.batch:
            stage = COARSE if batch in _BATCHES[::3] + _BATCHES[-1:] and context in _CONTEXTS[1::2] else FINE
            yield from _attention(shard, limits, "attention_decode", stage, (1, context, batch))


def _prefill(shard: Shard, limits: Limits) -> Iterator[Point]:
    for new, past in product(_CHUNKS, _PASTS):
        stage = COARSE if not past else FINE
        yield from _attention(shard, limits, "attention_prefill", stage, (new, past, 1))
    for count, new in _TOGETHER:
        yield from _attention(shard, limits, "attention_prefill", FINE, (new, 0, count))


def _mixed(shard: Shard, limits: Limits) -> Iterator[Point]:
    for new, count, context in _MIXED:
        if count <= limits.batch:
            yield from _attention(shard, limits, "attention_mixed", FINE, (new, 0, 1), (1, context, count))


def _uneven(shard: Shard, limits: Limits) -> Iterator[Point]:
    """Yield calls with unequal contexts, as in a server: decodes on their own, and decodes next to a prompt."""
    rng = random.Random(f"{shard.heads}")

    def contexts(count: int) -> list[tuple[int, int, int]]:
        drawn = [max(8, min(limits.context, int(rng.lognormvariate(6.2, 1.1)))) for _ in range(count)]
        return [(1, context, 1) for context in sorted(drawn)]

    for i in range(_UNEVEN):
        count = min(limits.batch, rng.choice((2, 4, 8, 16, 32, 64, 192)))
        if i % 4 == 3:
            half = max(1, count // 2)
            drawn = [(1, min(64, limits.context), half), (1, min(8192, limits.context), half)]
        else:
            drawn = contexts(count)
        prompt = [(min(limits.tokens, rng.choice((100, 300, 700, 1500))), 0, 1)] if i % 2 else []
        yield from _attention(shard, limits, "attention_uneven", HELD_OUT, *prompt, *drawn)


def table_row(point: Point) -> dict[str, Any]:
    """Return the key columns of a point's row in a kernel table."""
    row: dict[str, Any] = {"op": point.op, "dtype": point.dtype}
    if not point.pieces:
        return row | {"m": point.m, "n": point.n} | ({"k": point.k} if point.k else {})
    new, past, count = point.pieces[0]
    if point.op == "attention_mixed":
        _, past, count = point.pieces[1]
    return row | {"batch": count, "new_tokens": new, "past_tokens": past} | asdict(point.shape)
