"""Search over a recipe's keys: `search` remembers and judges, `suggest` and `trials` drive Ray Tune, `page`
shows. The first and last need no Ray.
"""
