"""Error bars: how far measured servers were from their simulation, and the resulting interval for a run."""
