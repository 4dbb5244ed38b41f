"""Builds and verifies a release: `python -m tools.release` (docs/release.md)."""
