"""Importers of other projects' kernel profiles into the neutral table schema."""
