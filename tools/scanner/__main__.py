"""Scan production stacks with Checkov, and fail on a finding without an exception.

    trainfleet rehearse aws-prod --until apply --keep kept
    python -m tools.scanner kept/*/state/.pulumi/stacks/trainfleet/aws-prod.json --checkov /path/to/checkov

Checkov is not a dependency of this project: install it into an environment of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tools.scanner.convert import read_state, write_files
from trainfleet.policies.scanner_exceptions import ScannerException, scanner_exceptions

Finding = tuple[str, str, str]
"""The check, the resource, and what the check requires."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.scanner", description=__doc__.partition("\n")[0])
    parser.add_argument("state", nargs="+", type=Path, help="state files of applied or rehearsed stacks")
    parser.add_argument("--checkov", default="checkov", help="the program, if it is not on PATH")
    options = parser.parse_args(arguments)
    exceptions = scanner_exceptions()
    found = [finding for state in options.state for finding in scan(state, options.checkov)]
    for check, resource, name in (unexpected := without_exception(found, exceptions)):
        print(f"{check} {resource}: {name}")
    for each in unused(found, exceptions):
        print(f"note: no finding for the exception to {each.check}")
    print(f"{len(found)} findings, {len(unexpected)} without an exception")
    return 1 if unexpected else 0


def scan(state: Path, checkov: str) -> list[Finding]:
    """Convert the resources of a state, run Checkov over them, and return what fails."""
    with tempfile.TemporaryDirectory() as folder:
        write_files(read_state(state), Path(folder))
        command = [checkov, "--directory", folder, "--framework", "terraform", "arm", "kubernetes"]
        command += ["--skip-download", "--compact", "--quiet", "--output", "json"]
        environment = {**os.environ, "BC_SKIP_MAPPING": "TRUE", "LOG_LEVEL": "ERROR"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode not in (0, 1):
        sys.exit(f"checkov failed: {done.stderr.strip()[-500:]}")
    return findings(json.loads(done.stdout))


def findings(report: Any) -> list[Finding]:
    """Read the failed checks of a report, which is a list if several frameworks found something to check."""
    parts = report if isinstance(report, list) else [report]
    return [
        (failed["check_id"], failed["resource"], failed["check_name"])
        for part in parts
        for failed in part.get("results", {}).get("failed_checks", [])
    ]


def without_exception(found: Iterable[Finding], exceptions: Sequence[ScannerException]) -> list[Finding]:
    """Return the findings that no exception covers."""
    return [each for each in found if not any(exception.covers(*each[:2]) for exception in exceptions)]


def unused(found: Sequence[Finding], exceptions: Sequence[ScannerException]) -> list[ScannerException]:
    """Return the exceptions that cover no finding."""
    return [each for each in exceptions if not any(each.covers(check, where) for check, where, _ in found)]


if __name__ == "__main__":
    sys.exit(main())
