"""`trainfleet diff`: shows what a change of code or spec would do to a platform, without an account."""
