"""Drift: what differs between the state of a stack and its cloud, and what the next up does about it."""
