"""A real one-node Kubernetes on this machine, without Docker and without a network: `trainfleet cluster up |
down`.

Servers built from pinned Go modules run in namespaces of their own (mounts, network, processes, host name),
so that the
machine outside sees one link, one folder of control groups and one state folder. Who has a cluster does not
need this.
"""
