"""Benchmarks: one file per question about speed. docs/benchmarks.md records dated results."""
