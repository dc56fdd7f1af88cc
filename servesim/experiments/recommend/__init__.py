"""Search for the best deployment: space, bounds, race, answer."""
