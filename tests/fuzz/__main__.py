"""`python -m tests.fuzz` tries every target on a number of inputs, and writes figures.json for docs/security.md."""

from __future__ import annotations

import argparse
import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from tests.fuzz.run import run
from tests.fuzz.targets import TARGETS

FIGURES = Path(__file__).with_name("figures.json")


def main() -> int:
    """Write the figures. A finding is printed and counted; the exit code is then 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--only", nargs="*", choices=TARGETS, help="keep the figures of the others")
    options = parser.parse_args()
    before = json.loads(FIGURES.read_text())["targets"] if options.only else []
    kept = {row["title"]: row for row in before}
    rows, findings = [], 0
    for name, target in TARGETS.items():
        if options.only and name not in options.only:
            rows.append(kept[target.title])
            continue
        began, found = time.process_time(), 0
        try:
            tried = run(target, options.inputs, options.seed)
            inputs, accepted, rejected = tried.inputs, tried.accepted, tried.rejected
        except (Exception, AssertionError) as error:  # noqa: BLE001 - each is a finding
            sys.stderr.write(f"{target.title}: {type(error).__name__}: {error}\n")
            found = 1
            inputs = accepted = rejected = 0
        findings += found
        rows.append(
            {
                "title": target.title,
                "inputs": inputs,
                "accepted": accepted,
                "rejected": rejected,
                "open_findings": found,
                "cpu_s": round(time.process_time() - began, 1),
            }
        )
        sys.stdout.write(f"{json.dumps(rows[-1])}\n")
    document = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "inputs": options.inputs,
        "seed": options.seed,
        "targets": rows,
    }
    FIGURES.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
