"""Hyperparameter search over a recipe's keys.

`search` holds state and results, `trials` launches and follows the trials, `trial_launch` has what one is
launched with, `metrics` reads their validations, `pruning` ends poor ones early, `page` writes the report.
"""
