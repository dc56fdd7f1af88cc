"""Error bars: how far measured servers were from what is simulated of them, and the interval that follows for a run."""
