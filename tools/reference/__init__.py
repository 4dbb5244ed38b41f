"""Generates docs/reference/ and the JSON Schema of recipes from the code: `python -m tools.reference`."""
