"""A real one-node Kubernetes cluster on this machine, without Docker: `trainfleet cluster up | down`.

Servers built from pinned Go modules run in their own namespaces (mounts, network, processes, host name). The
machine sees one network link, one folder of control groups and one state folder.
"""
