"""The values of every chart, typed: one module per part, each a small document of only what we set, and the
reason for it.

A value that is no secret by its nature never becomes one here: no field takes a password, key or token.
"""
