"""What CI needs in an account before it can apply a stack: a state backend, a secrets provider and identities
without stored keys. Created once by a person (docs/bootstrap.md).
"""
