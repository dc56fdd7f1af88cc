"""Random small worlds that policies are checked in: `servesim policies check`, and `--check` of a run."""
