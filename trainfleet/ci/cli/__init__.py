"""The command line of `trainfleet ci`."""
