"""What must hold: a CrossGuard pack over three clouds, one module per theme, plain functions. Never imports
infra.
"""
