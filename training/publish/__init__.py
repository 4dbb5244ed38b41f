"""Publication: `export` judges a checkpoint by the recipe's gates and writes it out, `provenance` says where
it comes from.
"""
