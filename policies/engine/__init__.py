"""The base of every policy: rules, property access, exceptions, and the adapter to Pulumi."""
