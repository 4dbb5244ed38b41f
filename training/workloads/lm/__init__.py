"""The language-model workload."""
