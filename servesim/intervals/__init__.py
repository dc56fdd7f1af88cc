"""Error bars: how far measured servers were from their simulations, and the resulting interval for a run."""
