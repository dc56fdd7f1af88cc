"""Figures of the reports: each module draws one kind from plain data."""
