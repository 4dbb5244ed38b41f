"""`trainfleet diff`: what a change of the code or of a spec would do to a platform, for reviewers, without an
account.
"""
