"""A platform on Google Cloud: one file per room, wired in build.py."""
