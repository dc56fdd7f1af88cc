"""Optional features of a run, with one folder each, found by its name (servesim.contracts.feature)."""
