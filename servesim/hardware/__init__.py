"""The hardware and models under the simulated engine: model shapes, GPUs, memory."""

from servesim.hardware.gpu import Gpu, gpu_names
from servesim.hardware.kv import KvGroup, block_bytes, kv_groups, max_concurrency, page_bytes
from servesim.hardware.layers import Experts, Latent, Layer, pipeline_layers
from servesim.hardware.memory import MemoryBudget, VllmDefaults, memory_budget, vllm_defaults
from servesim.hardware.model import ModelSpec, bundled_models, model_named

__all__ = [
    "Experts",
    "Gpu",
    "KvGroup",
    "Latent",
    "Layer",
    "MemoryBudget",
    "ModelSpec",
    "VllmDefaults",
    "block_bytes",
    "bundled_models",
    "gpu_names",
    "kv_groups",
    "max_concurrency",
    "memory_budget",
    "model_named",
    "page_bytes",
    "pipeline_layers",
    "vllm_defaults",
]
