"""Whole model with random weights that runs one forward step at a time over a paged KV cache, to verify a profile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from servesim.calibrate.kernels.torch_ops import BLOCK, Attend, PagedBatch, TorchOps
from servesim.calibrate.points import Shard
from servesim.errors import UserError

_SHARE = 0.8
"""Maximum share of the free memory for weights and KV."""


class WholeModel:
    """Weights of every layer and a KV pool; `prepare` a batch, then `step` it. With tp > 1, it is one GPU's shard
    without the collectives."""

    def __init__(self, ops: TorchOps, shard: Shard, kv_tokens: int) -> None:
        """Allocate the weights and the pool. `kv_tokens` is the requested size of the KV pool, reduced if memory is
        short."""
        self.ops, self.shard = ops, shard
        model, heads = shard.model, shard.heads
        linears = shard.linears()
        layer = {name: linears[name] for name in ("qkv", "attention_out", "up", "down")}
        head = linears["lm_head"]
        weights = model.num_layers * sum(n * k * ops.bytes_of(d) for n, k, d in layer.values())
        weights += 2.0 * head[0] * head[1] * ops.bytes_of(head[2])
        token = 2.0 * heads.kv_heads * heads.head_dim * ops.bytes_of(shard.wide) * model.num_layers
        free = ops.timed_on.free_bytes() * _SHARE
        self.blocks = int(min(kv_tokens, (free - weights) / token)) // BLOCK
        if self.blocks < 2:
            raise UserError(
                f"{model.name} in {shard.dtype} takes {weights / 2**30:.1f} GiB, but {ops.timed_on.name} has "
                f"{free / _SHARE / 2**30:.1f} GiB free: use a smaller model or a shard (--tp)"
            )
        self.layers = [
            {name: ops.weight(n, k, d) for name, (n, k, d) in layer.items()} for _ in range(model.num_layers)
        ]
        self.embed, self.head = ops.randn(head[0], model.hidden_size), ops.weight(*head)
        self.norm = ops.randn(model.hidden_size)
        pool = (self.blocks, BLOCK, heads.kv_heads, heads.head_dim)
        self.pools = [(ops.randn(*pool), ops.randn(*pool)) for _ in range(model.num_layers)]

    @property
    def kv_tokens(self) -> int:
        """Number of tokens that the pool holds."""
        return int(self.blocks * BLOCK)

    def prepare(self, pieces: Sequence[tuple[int, int]]) -> Prepared:
        """Return the data that an engine builds once per step: block tables, positions, slots, and the attention
        plan."""
        torch, ops = self.ops.torch, self.ops
        batch = PagedBatch(torch, ops.on, pieces, self.blocks)
        ids = torch.randint(0, self.head_rows, (batch.tokens,), device=ops.on)
        rotation = ops.rotation(batch.positions, self.shard.heads.head_dim)
        last = batch.starts[1:].long() - 1
        return Prepared(batch, ids, rotation, last, ops.paged_attention(self.shard.heads, batch))

    @property
    def head_rows(self) -> int:
        """Vocabulary size of this shard."""
        return int(self.embed.shape[0])

    def step(self, p: Prepared) -> Any:
        """Return the next token of every sequence."""
        ops, heads, dtype = self.ops, self.shard.heads, self.shard.dtype
        q, kv = heads.heads * heads.head_dim, heads.kv_heads * heads.head_dim
        x = ops.torch.nn.functional.embedding(p.ids, self.embed)
        residual = ops.torch.zeros_like(x)
        for layer, pool in zip(self.layers, self.pools, strict=True):
            y, residual = ops.add_norm(x, residual, self.norm)
            queries, keys, values = ops.multiply(y, layer["qkv"], dtype).split([q, kv, kv], dim=-1)
            queries, keys = ops.rotate(
                queries.view(-1, heads.heads, heads.head_dim), keys.view(-1, heads.kv_heads, heads.head_dim), p.rotation
            )
            ops.write_kv(keys, values.view(-1, heads.kv_heads, heads.head_dim), *pool, p.batch.write)
            attended = ops.torch.empty(p.batch.tokens, heads.heads, heads.head_dim, device=x.device, dtype=x.dtype)
            p.attend(queries, *pool, attended)
            x = ops.multiply(attended.flatten(1), layer["attention_out"], dtype)
            y, residual = ops.add_norm(x, residual, self.norm)
            x = ops.multiply(ops.activate(ops.multiply(y, layer["up"], dtype)), layer["down"], dtype)
        y, _ = ops.add_norm(x, residual, self.norm)
        return ops.sample(ops.multiply(y[p.last], self.head, self.shard.wide))


class Prepared:
    """Batch that is ready to step."""

    def __init__(self, batch: PagedBatch, ids: Any, rotation: Any, last: Any, attend: Attend) -> None:
        self.batch, self.ids, self.rotation, self.last, self.attend = batch, ids, rotation, last, attend
