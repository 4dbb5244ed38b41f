"""The simulated Azure API."""
