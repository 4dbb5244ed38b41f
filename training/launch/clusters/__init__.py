"""One recipe on several clusters at once: a run on each, one view, one report.

`entries` reads which clusters there are, `group` starts and follows a launch process for each, `member` is
that process, `summary` aggregates their runs.
"""
