"""Simulated clouds that check every resource property against the installed Pulumi SDKs.

The engine reaches them over the real provider protocol (`provider.py`). `schema.py` and `check.py` know the
valid inputs, `values.py` computes outputs, and `state.py` holds what exists.
"""
