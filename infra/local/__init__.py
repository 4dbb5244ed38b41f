"""A platform on an existing Kubernetes cluster: no cloud resources, the same layer on top."""
