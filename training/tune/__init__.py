"""Hyperparameter search over a recipe's keys. `search` holds state and results, `searcher` and `trials` drive
Ray Tune, `page` writes the report. `search` and `page` need no Ray.
"""
