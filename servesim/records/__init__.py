"""Records of a run: steps, deliveries and requests as rows of integers."""
