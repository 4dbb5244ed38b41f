"""Pinned sources of the programs that are built on this machine: a go.mod and go.sum, or a lock file, per
program.
"""
