"""What the benchmarks share: the command line, the head of their documents, and summaries of times."""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import inspect
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from trainfleet.errors import TrainfleetError
from trainfleet.files import write_whole
from trainfleet.training.runtime import local_resources

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def run(
    description: str | None,
    subject: str,
    measure: Callable[..., dict[str, Any]],
    show: Callable[[dict[str, Any]], None],
    passed: Callable[[dict[str, Any]], bool] | None = None,
    *,
    add_options: Callable[[argparse.ArgumentParser], Any] = lambda _: None,
) -> int:
    """Measure `--<subject> NAME` (empty: the benchmark's default) and print the document.

    Args:
        description: whose first line describes the command.
        subject: what NAME is; empty if there is nothing to choose, and then there is no such option.
        measure: called with NAME, with whether to be short, and with the options of `add_options` by name.
        show: prints the document for a person.
        passed: whether the figures are good enough.
        add_options: adds options to the parser.

    Returns:
        The exit code: it depends on the figures only with `passed`, and is 1 if they did not pass.
    """
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.set_defaults(name="")
    if subject:
        name_help = f"the {subject} to measure (default: the benchmark's own)"
        parser.add_argument(f"--{subject}", dest="name", help=name_help)
    smoke_help = "one short round, to check that the benchmark works; its figures mean little"
    parser.add_argument("--smoke", action="store_true", help=smoke_help)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    record_help = (
        "also write the result to benchmarks/results; `python -m tools.figures --write` puts it on the page"
    )
    parser.add_argument("--record", action="store_true", help=record_help)
    add_options(parser)
    arguments = parser.parse_args()
    if arguments.record and arguments.smoke:
        parser.error("--record does not go with --smoke, whose figures mean little")
    known = ("name", "smoke", "json", "record")
    more = {name: value for name, value in vars(arguments).items() if name not in known}
    try:
        document = measure(arguments.name, arguments.smoke, **more)
    except TrainfleetError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    document = json.loads(json.dumps(document))  # what is printed can be printed again from the file
    if arguments.record:
        record(Path(inspect.getfile(show)).stem, document)
    if arguments.json:
        print(json.dumps(document, indent=2))
    else:
        show(document)
    return 0 if passed is None or passed(document) else 1


def record(name: str, document: dict[str, Any]) -> None:
    """Write the result of a benchmark, with its command and commit."""
    options = shlex.join(each for each in sys.argv[1:] if each not in ("--json", "--record"))
    result = {
        "command": f"python -m benchmarks.{name} {options}".strip(),
        "commit": _commit(),
        "document": document,
    }
    write_whole(RESULTS / f"{name}.json", json.dumps(result, indent=2) + "\n")


def _commit() -> str:
    """Return the checkout's commit."""
    commands = (("rev-parse", "--short=12", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
    commit, changes = (
        subprocess.run(["git", *each], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
        for each in commands
    )
    return f"{commit or 'an unknown commit'}{' with changes' if changes else ''}"


def environment(packages: Iterable[str] = ()) -> dict[str, Any]:
    """When and where the figures were measured, with the versions of Python and of these packages."""
    found: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": local_resources.describe(),
        "load": round(os.getloadavg()[0], 2),
    }
    if versions := {name: importlib.metadata.version(name) for name in packages}:
        found["versions"] = {"python": platform.python_version(), **versions}
    return found


def show_environment(document: dict[str, Any]) -> None:
    """Print what `environment` returned."""
    print(f"{document['date']}, {document['machine']}, load {document['load']} at the end")
    if versions := document.get("versions"):
        print(", ".join(f"{name} {version}" for name, version in versions.items()))


def summary(values: Sequence[float], digits: int) -> dict[str, float]:
    """The median, the smallest and the largest value."""
    return {
        "median": round(statistics.median(values), digits),
        "least": round(min(values), digits),
        "most": round(max(values), digits),
    }
