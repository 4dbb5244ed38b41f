"""`python -m tools.security` writes the generated parts of docs/security.md. With `--check` it exits with 1
if one is stale.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tools.security.page import PAGE, current, written


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.security", description="Write docs/security.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if it is stale")
    options = parser.parse_args(arguments)
    text = PAGE.read_text(encoding="utf-8")
    new = written(text, current())
    if options.check and new != text:
        sys.stderr.write("stale: docs/security.md\nrun: python -m tools.security\n")
        return 1
    if not options.check:
        PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
