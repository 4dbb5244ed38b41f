"""The Pulumi engine: finding or building it, its sandbox, and the language host that runs programs for it."""
