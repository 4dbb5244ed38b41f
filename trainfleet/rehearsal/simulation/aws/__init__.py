"""The simulated AWS API."""
