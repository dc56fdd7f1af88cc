"""Columns of the tables in which a run is recorded."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
"""Rows of integers in fixed columns."""
STEP_COLUMNS = (
    "replica",
    "step",  # id of the first step of the row; ids count from 0 per replica
    "k",  # steps in the row
    "planned_ns",  # of the first step
    "start_ns",  # of the first step
    "end_ns",  # of the last step
    "elapsed_ns",  # from start_ns, or the replica's previous end_ns if later (pipeline stages), to end_ns
    "prefill_tokens",  # per step, like all counts below
    "prefill_pieces",
    "prefill_context",  # sum over chunks of the tokens already in the KV cache
    "decode_count",
    "decode_context",  # sum of contexts in the first step; grows by decode_count per step
    "sampled",
    "padded_tokens",
    "drafts",  # draft tokens verified
    "accepted",  # accepted and delivered drafts
    "preempted",  # requests preempted while the step was planned
    "bytes_moved",
    "gpu_ns",  # of all k steps
    "host_ns",  # of all k steps, hidden or not
    "kv_used",  # tokens in memory when the first step is planned: see contracts.kv.Usage
    "kv_internal",
    "kv_external",
    "kv_peak",  # tokens allocated (used + internal) when the last step is planned
    "kv_used_ns",  # integrals over the row's steps, token-nanoseconds
    "kv_internal_ns",
    "measured_ns",  # of gpu_ns, by origin; excludes time added by low clocks
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
    "scheduled_ns",  # -1 if never
    "first_token_ns",
    "last_token_ns",
    "finished_ns",
    "hit_tokens",  # prefix tokens found in the cache when first admitted
    "num_preemptions",
    "recomputed_tokens",
    "sample",  # 0 for a single sample; 1 to n for several (n > 1), or -1 if it only filled the prefix cache for them
    "request",  # row of the request it samples
)
"""Columns of requests. There is one row per output sequence; a request with n samples has n."""
LATE_COLUMNS = (
    "row",
    "ns",  # end of the step that delivered, on the engine's clock
    "since_ns",  # time of the request's previous tokens; `ns` if none
    "tokens",
)
"""Columns of irregular deliveries. Between a request's first and last token, every step that ends on its replica
delivers it one token, unless a row here states that it got none between `since_ns` and `ns`, and then `tokens`."""
