"""Requests to send: traces as columns, and how they arrive."""
