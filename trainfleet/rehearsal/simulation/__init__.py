"""Simulated clouds: providers over the real protocol that check every property against the installed Pulumi
SDKs.

`provider.py` speaks gRPC; `schema.py` and `check.py` know what an input may be; `values.py` makes outputs;
`state.py` is what exists. A cloud's own knowledge (names, answers to functions) is in a module of its own:
`aws.py`, `kubernetes.py`.
"""
