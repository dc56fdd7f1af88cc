"""Validation of the product, not needed to use it: published claims, the fit of error bars, replay of another
simulator."""
