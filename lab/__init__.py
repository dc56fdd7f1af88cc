"""Proofs that the product is right, not needed to use it: published claims, the fit of error bars, another
simulator's replay."""
