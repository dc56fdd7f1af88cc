"""Optional features of a run: a folder each, found by its name (servesim.contracts.feature)."""
