"""`trainfleet init`: a repository of an adopter's own, with stacks, a policy, a workload, tests and CI.

`answers` validates what is asked for, `render` makes the files, `write` creates the repository, `upgrade`
merges the files of a later version into it.
"""
