"""A platform on a Kubernetes that is already there: no cloud resources, the same layer on top."""
