"""Trainfleet: the command line, and the modules that every subpackage may import (errors, files, console).

No shared module imports a subpackage; `trainfleet.cli` does so lazily.
"""

__version__ = "0.1.0"
