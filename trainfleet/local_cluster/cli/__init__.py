"""The `cluster` command."""
