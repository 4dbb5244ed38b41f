"""The values of every chart, typed: one module per part, each a small document of only what we set, and the
reason for it.

No field takes a password, key or token.
"""
