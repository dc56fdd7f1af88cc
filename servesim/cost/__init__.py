"""The cost of a step: kernel tables, interpolation, the layer graph."""

from servesim.cost.build import build_cost_model
from servesim.cost.model import TableCostModel
from servesim.cost.tables import KernelTables

__all__ = ["KernelTables", "TableCostModel", "build_cost_model"]
