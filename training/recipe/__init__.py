"""The recipe: schema, loading and overrides, and generated documentation."""
