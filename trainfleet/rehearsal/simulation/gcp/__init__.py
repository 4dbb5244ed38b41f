"""The simulated Google Cloud API."""
