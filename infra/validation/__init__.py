"""Rules between several fields of a spec, or between a field and its cloud. `rules.py` has the list."""
