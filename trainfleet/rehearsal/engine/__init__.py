"""The Pulumi engine: found or built, started in a sandbox, and the language host that runs programs for it."""
