"""Columns of the tables in which a run is recorded."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
"""Rows of integers under fixed columns."""
STEP_COLUMNS = (
    "replica",
    "step",  # id of the first step of the row; ids count from 0 per replica
    "k",  # steps in the row
    "planned_ns",  # of the first step
    "start_ns",  # of the first step
    "end_ns",  # of the last step
    "elapsed_ns",  # from the start, or the end of the replica's step before if later (pipeline stages), to the end
    "prefill_tokens",  # per step, like all counts below
    "prefill_pieces",
    "prefill_context",  # sum over pieces of the tokens in the KV cache before them
    "decode_count",
    "decode_context",  # sum of contexts attended in the first step; grows by decode_count per step
    "sampled",
    "padded_tokens",
    "drafts",  # draft tokens verified
    "accepted",  # of them accepted and delivered
    "preempted",  # requests preempted while the step was planned
    "bytes_moved",
    "gpu_ns",  # of all k steps
    "host_ns",  # of all k steps, hidden behind the GPU or not
    "kv_used",  # tokens in memory once the first step is planned: see contracts.kv.Usage
    "kv_internal",
    "kv_external",
    "kv_peak",  # tokens allocated (used + internal) once the last step is planned
    "kv_used_ns",  # integrals over the row's steps, token-nanoseconds
    "kv_internal_ns",
    "measured_ns",  # of gpu_ns, by origin; what a lowered clock adds has none
    "interpolated_ns",
    "extrapolated_ns",
    "roofline_ns",
)
REQUEST_COLUMNS = (
    "row",
    "replica",
    "state",  # value of engine.request.State: FINISHED, REJECTED or ABORTED
    "prompt_len",
    "output_len",  # tokens delivered
    "max_tokens",
    "priority",
    "arrival_ns",
    "scheduled_ns",  # first; -1: never
    "first_token_ns",
    "last_token_ns",
    "finished_ns",
    "hit_tokens",  # prefix tokens found in the cache when first admitted
    "num_preemptions",
    "recomputed_tokens",
    "sample",  # 0: the only one; of several samples (n > 1) from 1 to n, or -1: only filled the prefix cache for them
    "request",  # row of the request it is a sample of
)
"""A row for each output sequence; a request of n samples has n."""
LATE_COLUMNS = (
    "row",
    "ns",  # when the step ended that delivered, on the engine's clock
    "since_ns",  # when the request got tokens before; `ns` itself: never
    "tokens",
)
"""Deliveries out of the ordinary. Between its first and its last token every step of a request's replica that ends
delivers it one token, except where a row here says otherwise: none between `since_ns` and `ns`, then `tokens`."""
