"""A platform on Azure: the same rooms as its siblings."""
