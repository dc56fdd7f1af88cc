"""Live serving: requests arrive from outside while the engine runs, at the times of an event loop's clock."""
