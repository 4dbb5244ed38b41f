"""A rehearsal whose Kubernetes objects are made for real: on the cluster of `trainfleet cluster up`, or on
any
that a kubeconfig names.

The engine, the program and the clouds are as in every rehearsal. What the simulated provider of Kubernetes
is asked to make is sent to a real API server by server-side apply, so that admission, validation, rights,
Pod Security and quotas answer; at the end the cluster is as before.
"""
