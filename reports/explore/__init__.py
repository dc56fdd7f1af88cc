"""The explorer: a page on this machine whose controls run simulations as they move."""
