"""Draft models: a small model, a layer on top of the target, or heads alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

from servesim.hardware.layers import Layer
from servesim.hardware.model import ModelSpec


@dataclass(frozen=True, slots=True)
class DraftModel:
    """Weights used by a drafting pass, on the GPUs of the target."""

    spec: ModelSpec
    """Decoder layers, and the LM head with its vocabulary."""
    decoder: bool = True
    """Whether it has layers; if not, it has only `linears` and the LM head."""
    linears: tuple[tuple[int, int], ...] = ()
    """(output width, input width) of additional linear layers applied to every token of every pass."""
    first_linears: tuple[tuple[int, int], ...] = ()
    """(output width, input width) of linear layers in the first pass only."""
    owns_lm_head: bool = True
    """Whether it has its own LM head; if not, it uses the target's, which is already loaded (embeddings are always the
    target's)."""
    shares_layers: bool = False
    """Whether the layers are the target's (early exit), with no additional weights or KV."""

    def weight_bytes(self, dtype: str) -> int:
        """Return the bytes of weights in addition to the target's, for the whole model before tensor parallelism."""
        if self.shares_layers:
            return 0
        layers = range(self.spec.num_layers if self.decoder else 0)
        body = sum(self.spec.layer_bytes(self.spec.layers[i], dtype) for i in layers)
        linears = 2 * sum(n * k for n, k in (*self.linears, *self.first_linears))
        head = 2 * self.spec.hidden_size * self.spec.vocab_size if self.owns_lm_head else 0
        return int(body + linears + head)

    @property
    def kv_layers(self) -> int:
        """Number of layers that keep their own KV."""
        return self.spec.num_layers if self.decoder and not self.shares_layers else 0


def eagle_head(target: ModelSpec, draft_vocab: int | None = None) -> DraftModel:
    """Return the EAGLE head (arXiv 2401.15077): one decoder layer of the target's shape, fed by a linear layer over the
    embedding and the target's last hidden state; LM head and embedding are the target's."""
    h = target.hidden_size
    return DraftModel(_layers(target, 1, draft_vocab), linears=((h, 2 * h),), owns_lm_head=draft_vocab is not None)


def eagle3_head(target: ModelSpec, draft_vocab: int, mlp_width: int) -> DraftModel:
    """Return the EAGLE-3 head (arXiv 2503.01840): one dense layer whose attention reads the concatenated embedding and
    hidden state; hidden states of three target layers are fused before the first pass; an LM head over a reduced
    vocabulary."""
    h = target.hidden_size
    qkv = target.q_size + 2 * target.kv_size
    spec = replace(_layers(target, 1, draft_vocab), intermediate_size=mlp_width)
    return DraftModel(spec, linears=((qkv, h),), first_linears=((h, 3 * h),))


def mtp_head(target: ModelSpec) -> DraftModel:
    """Return the multi-token prediction head (DeepSeek-V3, arXiv 2412.19437): one layer of the same kind as the
    target's last layer, over the concatenated embedding and hidden state; embedding and LM head are the target's."""
    h = target.hidden_size
    spec = _layers(target, 1, None, kinds=target.layers[-1:])
    return DraftModel(spec, linears=((h, 2 * h),), owns_lm_head=False)


def medusa_head(target: ModelSpec) -> DraftModel:
    """Return Medusa's heads (arXiv 2401.10774): a residual block and an LM head for each draft position."""
    h = target.hidden_size
    return DraftModel(_layers(target, 1, None), decoder=False, linears=((h, h),))


def early_exit(target: ModelSpec, layers: int) -> DraftModel:
    """Return the target's first layers and its LM head."""
    spec = _layers(target, layers, None, kinds=target.layers[:layers])
    return DraftModel(spec, owns_lm_head=False, shares_layers=True)


def _layers(target: ModelSpec, count: int, vocab: int | None, kinds: tuple[Layer, ...] = ()) -> ModelSpec:
    """Return `count` layers of a target's shape: of the given kinds, or (for draft heads) dense with full attention."""
    return replace(
        target,
        name=f"{target.name} draft",
        num_layers=count,
        vocab_size=vocab or target.vocab_size,
        layer_kinds=kinds,
        experts=target.experts if kinds else None,
    )
