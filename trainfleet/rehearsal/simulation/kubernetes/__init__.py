"""The simulated Kubernetes API."""
