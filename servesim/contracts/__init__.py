"""What a policy author needs: the contracts, and the registries that find policies by name."""

from servesim.contracts.cost import Batch, CostModel, Price
from servesim.contracts.registry import Registry

__all__ = ["Batch", "CostModel", "Price", "Registry"]
