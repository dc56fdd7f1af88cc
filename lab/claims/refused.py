"""Claims of the lecture texts that no experiment reruns."""

from __future__ import annotations

REFUSED = {
    "a GPT-4-like model of 120 layers": "no configuration is published; --model takes any config.json",
    "reasoning models write 5 to 10 times the tokens": "lengths of answers are what a trace says, not a result",
    "sizes of further quantized examples": "the rule of `memory` for 7B and 70B holds: parameters x bits / 8",
    "FlashAttention-2 against FlashAttention-3": "kernel tables hold what an engine chose, neither version alone",
    "torch.compile": "tables were measured with compiled code; none without it is at hand",
    "models of Mamba layers alone": "no kernel table without attention; hybrids have one (`out-of-scope`)",
    "SRAM beside HBM": "data sheets here have one level of memory; kernels are measured whole",
    "GPT-2 and encoder-decoders": "no kernel table with their attention; the loader refuses them by name",
}
"""Claims, each with the reason why it is refused."""
