"""The command `trainfleet image`."""
