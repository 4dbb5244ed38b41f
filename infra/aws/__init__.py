"""A platform on AWS: one file per component, wired in build.py."""
