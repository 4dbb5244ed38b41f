"""`python -m tests.snapshots --update`: store today's surfaces, for a change that is intended."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.snapshots import FILES, surfaces, write

if __name__ == "__main__":
    if sys.argv[1:] != ["--update"]:
        sys.exit("usage: python -m tests.snapshots --update")
    for name, surface in FILES.items():
        write(name, surface())
    write("environment", surfaces.environment(Path.cwd()))
