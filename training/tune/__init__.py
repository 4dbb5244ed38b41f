"""Hyperparameter search over a recipe's keys. `search` holds state and results, `trials` launches and follows
the trials with what `trial_launch` gives them, `metrics` reads their validations, `pruning` ends poor ones early,
`page` writes the report.
"""
