"""Writes the tables of what providers do with changes: `make knowledge` (docs/knowledge.md)."""
