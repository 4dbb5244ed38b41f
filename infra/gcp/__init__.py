"""A platform on Google Cloud: one file per component, wired in build.py."""
