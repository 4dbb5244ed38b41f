"""Trainfleet: the parts that every package of the house may use (errors, files, console) and the command
line.

Nothing here imports infra, rehearsal, policies or training, except `trainfleet.cli`, and that one lazily.
"""

__version__ = "0.1.0"
