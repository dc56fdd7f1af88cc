"""`store`: a store of KV that all replicas read and write without host memory of their own between, as vLLM 0.33's
MooncakeStoreConnector has it (vllm/distributed/kv_transfer/kv_connector/v1/mooncake/store). Its keys hold the model and
the rank, so that replicas with another number of GPUs find nothing of each other (data.py); loads run beside the steps
(load_async), and what was written is found when all of it is there.
"""

from __future__ import annotations

from servesim.contracts.connector import connectors
from servesim.contracts.place import Place
from servesim.features.offload.connector import Offload
from servesim.features.offload.params import StoreParams
from servesim.features.offload.setup import blocks_in, store_tier


@connectors.register("store")
class Store(Offload):
    """Copies blocks to one store of all replicas when they are computed, and loads them beside the steps."""

    Params = StoreParams
    params: StoreParams
    tier = ""

    def __init__(self, params: StoreParams, place: Place) -> None:
        self.params, self.place, self.first = params, place, params.first
        tokens = params.block_size_factor * place.block_size
        own = store_tier(
            "store",
            blocks_in("store", params.store, tokens, place),
            place,
            gb_s=params.gb_s,
            start_us=params.start_us,
            server_gb_s=params.server_gb_s,
            key=("store", params.store, params.server_gb_s, tokens),
        )
        super().__init__(
            own.memory,
            own.reading,
            own.writing,
            block_tokens=tokens,
            gpu_block_tokens=place.block_size,
            gpu_block_bytes=place.block_bytes,
            shared=own.name,
        )

    def note(self) -> str:
        held = self.memory.num_blocks * self.block_tokens
        served = f"{self.params.server_gb_s:g} GB/s for all" if self.params.server_gb_s else "without a limit for all"
        return (
            f"offload: a store for {held:,} tokens of all replicas, read and written at {self.params.gb_s:g} GB/s per "
            f"replica in each direction, {served}"
        )
