"""Random small worlds in which policies are checked: `servesim policies check`, and `--check` of a run."""
