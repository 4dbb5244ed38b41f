"""Writes the tables of docs/security.md: actors, roles, controls of CIS benchmarks, figures of fuzzing."""
