"""Optional features of a run, each in its own folder and found by the folder's name (servesim.contracts.feature)."""
