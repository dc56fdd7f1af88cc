"""Widths of layers that engines refuse because quantization has one scale per block of weights.

Unless every rank has whole blocks, the engine does not start. This is checked by vLLM (`validate_fp8_block_shape` for
linear layers, `Fp8MoEMethod.create_weights` for experts) and by SGLang, which took over both checks.
"""

from __future__ import annotations

from collections.abc import Iterator

from servesim.errors import UserError
from servesim.hardware.model import ModelSpec, check_tp, kv_heads_per_gpu

_TRIED = (1, 2, 4, 8, 16)
"""Tensor-parallel degrees that the error message may suggest."""
_EXPERTS = "The output_size of gate's and up's weight"
_LINEAR = "Weight output_partition_size"
"""Beginnings of the engines' two messages."""


def check_blocks(model: ModelSpec, dtype: str, block: int, engine: str, *, tp: int, dp: int = 1, ep: int = 1) -> None:
    """Raise UserError if `engine` refuses to split weights in FP8 blocks of `block` x `block` over `dp` ranks of `tp`
    GPUs each, with whole experts distributed over `ep` of them. Other formats of weights are split at any width."""
    if dtype != "fp8_block" and not (dtype == "fp8" and model.block_scaled):
        return
    bad = _broken(model, block, tp, dp, ep)
    if bad is None:
        return
    what, begins, width = bad
    degrees = [str(t) for t in _TRIED if _divides(model, t) and _broken(model, block, t, dp, 1) is None]
    ways = [f"choose tp from: {', '.join(degrees)}"] if degrees else ["choose another format"]
    if _broken(model, block, tp, dp, tp * dp) is None:
        ways.insert(0, "enable expert parallelism (engine.enable_expert_parallel)")
    raise UserError(
        f"tp = {tp} gives each GPU {width} columns of the {what} of {model.name}, whose FP8 weights have one scale "
        f"per block of {block}. Therefore, {engine} does not start: {begins} = {width} is not divisible by weight "
        f"quantization block_n = {block}; {' or '.join(ways)}"
    )


def _broken(model: ModelSpec, block: int, tp: int, dp: int, ep: int) -> tuple[str, str, int] | None:
    """Return the first layer whose width on a GPU is not a multiple of `block`: its name, the beginning of the engine's
    message, the width."""
    return next((one for one in _widths(model, tp, dp, ep) if one[2] % block), None)


def _widths(model: ModelSpec, tp: int, dp: int, ep: int) -> Iterator[tuple[str, str, int]]:
    heads = model.num_heads // tp
    if any(layer.mixer and not layer.recurrent for layer in model.layers):
        if model.latent is not None:
            yield "attention", _LINEAR, heads * (model.latent.nope_dim + model.latent.rope_dim)
        else:
            yield "attention", _LINEAR, heads * model.head_dim
            yield "attention", _LINEAR, kv_heads_per_gpu(model, tp) * model.head_dim
    if any(layer.mlp and not layer.experts for layer in model.layers):
        yield "MLP", _LINEAR, model.intermediate_size // tp
    if model.experts is not None:
        yield "experts", _EXPERTS, model.experts.size // max(tp * dp // ep, 1)
        yield "shared expert", _LINEAR, model.experts.shared_size // tp


def _divides(model: ModelSpec, tp: int) -> bool:
    try:
        check_tp(model, tp)
    except UserError:
        return False
    return True
