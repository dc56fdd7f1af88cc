"""Deciders: which requests a decode replica serves alone, prompt included."""
