"""The command `trainfleet ui`."""
