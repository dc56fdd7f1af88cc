"""Times of a router whose weights an engine keeps in float32.

Three kernels run instead of one: activations are converted to float32, the product runs on CUDA cores, and the partial
sums of a product that is split along its inner dimension are added. With `float32_matmul_precision` high, the product
runs on tensor cores in TF32 and is not split. `fp32_routers` (servesim/versions/vllm.yaml) lists the models. The rates
are those of the formula; one measured pair agrees with them: MiniMax-M2.5 on four B200 under vLLM 0.19 before and after
TF32 was switched on (InferenceX, April 2026, prompts of 7,400 tokens, 4 clients) differs by 17 ms in TTFT, 18 by this
formula.
"""

from __future__ import annotations

from servesim.cost.curve import Curve
from servesim.cost.curves import total
from servesim.cost.formula import Roofline, line, max_of_lines, moved_bytes

_TF32_SHARE = 0.5
"""TF32's rate relative to bf16's in NVIDIA's data sheets from A100 to B200."""


def fp32_router_curve(roofline: Roofline, experts: int, hidden: int, tf32: bool) -> Curve:
    """Return the time of a float32 router of `experts` outputs as a function of its tokens, by formula."""
    cast = roofline.memory_op(6.0 * hidden)
    rate = _TF32_SHARE * roofline.peak("bf16") if tf32 else roofline.peak("fp32")
    product = max_of_lines(
        (
            roofline.launch_ns + experts * hidden * 4.0 / roofline.rate,
            moved_bytes(experts, hidden, "fp32") / roofline.rate,
        ),
        (roofline.launch_ns, 2.0 * experts * hidden / rate),
    )
    return total([cast, product, line(0.0 if tf32 else roofline.launch_ns, 0.0)])
