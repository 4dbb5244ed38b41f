"""The image-classification workload."""
