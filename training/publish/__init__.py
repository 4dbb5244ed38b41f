"""Publishing: `export` checks a checkpoint against the recipe's gates and writes it; `provenance` documents
it.
"""
