"""What every benchmark's command line has in common: `--smoke`, `--json`, and that a figure never makes it
fail.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from trainfleet.errors import TrainfleetError


def run(
    description: str | None,
    subject: str,
    measure: Callable[[str, bool], dict[str, Any]],
    show: Callable[[dict[str, Any]], None],
) -> int:
    """Measure `--<subject> NAME` (empty: the benchmark's own choice) and print. Returns the exit code: 0
    whatever the figures are.
    """
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument(
        f"--{subject}",
        dest="name",
        default="",
        help=f"the {subject} to measure (default: the benchmark's own)",
    )
    parser.add_argument(
        "--smoke", action="store_true", help="one short round, to see that it works; the figures say little"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args()
    try:
        document = measure(arguments.name, arguments.smoke)
    except TrainfleetError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if arguments.json:
        print(json.dumps(document, indent=2))
    else:
        show(document)
    return 0
