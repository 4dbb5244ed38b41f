"""The command `trainfleet init`."""
