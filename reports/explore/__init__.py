"""Explorer: a local page whose controls run simulations as they move."""
