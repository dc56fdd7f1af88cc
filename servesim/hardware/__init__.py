"""What the simulated engine runs on: model shapes, GPUs, memory."""

from servesim.hardware.gpu import Gpu, gpu_names
from servesim.hardware.memory import MemoryBudget, VllmDefaults, memory_budget, vllm_defaults
from servesim.hardware.model import ModelSpec, bundled_models

__all__ = [
    "Gpu",
    "MemoryBudget",
    "ModelSpec",
    "VllmDefaults",
    "bundled_models",
    "gpu_names",
    "memory_budget",
    "vllm_defaults",
]
