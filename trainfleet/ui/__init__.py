"""`trainfleet ui`: a local, read-only web page of stacks, clusters and runs.

`server` opens the port, `guard` decides which requests are answered, `app` has the routes, `run_store` keeps
the list of runs current, and each module of `pages` computes what one template shows.
"""
