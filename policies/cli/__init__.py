"""The `policies` command."""
