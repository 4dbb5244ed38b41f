"""The speech-to-text workload."""
