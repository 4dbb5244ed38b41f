"""A platform on AWS: one file per room, wired in build.py."""
