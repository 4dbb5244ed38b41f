"""`python -m tools.reference` writes the reference pages. With `--check` it exits with 1 if one is stale."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tools.reference.pages import COMMAND, ROOT, stale, write


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point; returns the exit code."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Write docs/reference/ and the recipe schema.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file is stale")
    options = parser.parse_args(arguments)
    names = stale(ROOT)
    if options.check:
        for name in names:
            print(f"stale: {name}", file=sys.stderr)
        if names:
            print(f"run: {COMMAND}", file=sys.stderr)
        return 1 if names else 0
    write(ROOT)
    print("\n".join(f"wrote {name}" for name in names) or "all pages are up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main())
