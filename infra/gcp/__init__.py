"""A platform on GCP: the same rooms as its siblings."""
