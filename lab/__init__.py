"""What proves the product right, and is not needed to use it: published claims, the fit of error bars, another
simulator's replay."""
