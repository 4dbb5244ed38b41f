"""Reference recipes: one YAML per run."""
