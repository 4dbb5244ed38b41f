"""Real object stores on the loopback interface, for tests and benchmarks: versitygw (S3), fake-gcs-server and
Azurite.

`python -m trainfleet.local_cluster.stores` builds them ahead of time (about two minutes, once per machine).
"""
