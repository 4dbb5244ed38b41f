"""One recipe on several clusters at once: a run on each, one view, one report.

`entries` reads which clusters there are, `group` launches on each, `processes` starts and follows the launch
processes, `member` is such a process, `summary` aggregates their runs, `state` is what is recorded of them.
"""
