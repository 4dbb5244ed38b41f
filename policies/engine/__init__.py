"""What every policy is built on: rules, property access, exceptions, and the bridge to Pulumi."""
