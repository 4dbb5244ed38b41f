"""Real object stores on this machine's loopback, for tests and benchmarks: versitygw (S3), fake-gcs-server
and Azurite.

`python -m trainfleet.local_cluster.stores` fetches and builds them ahead of time (about two minutes, once per
machine and pin).
"""
