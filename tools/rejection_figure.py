"""Computes how many held-out mistakes the simulated clouds reject, and how many of the corrected programs.

    python -m tools.rejection_figure            the figures
    python -m tools.rejection_figure --rows     and the rows that are behind them

The rows are in tests/rehearsal/heldout; its README says how one is read. A mistake counts as rejected only if
a message names the property at fault.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
HELD_OUT = ROOT / "tests" / "rehearsal" / "heldout"


@dataclass(frozen=True)
class Row:
    """One program that a cloud rejected, and the same program after the correction."""

    package: str
    source: str
    type: str
    property: str
    wrong: dict[str, Any]
    right: dict[str, Any]


@dataclass(frozen=True)
class Checked:
    """What the simulated clouds say about one row."""

    row: Row
    wrong: list[str]
    right: list[str]

    @property
    def rejected(self) -> bool:
        """Whether the mistake is rejected with a message that names its property."""
        return any(_plain(self.row.property) in _plain(message) for message in self.wrong)


def rows(folder: Path = HELD_OUT) -> Iterator[Row]:
    """Yield the held-out rows."""
    for file in sorted(folder.glob("*.toml")):
        for row in tomllib.loads(file.read_text(encoding="utf-8"))["mistake"]:
            yield Row(file.stem, row["source"], row["type"], row["property"], row["wrong"], row["right"])


def check_row(row: Row) -> Checked:
    """Try one row and its correction."""
    return Checked(
        row, messages(row.package, row.type, row.wrong), messages(row.package, row.type, row.right)
    )


def messages(package: str, name: str, arguments: dict[str, Any]) -> list[str]:
    """Return what a program with one resource is rejected with: by the SDK, or by the simulated cloud."""
    from trainfleet.rehearsal.simulation.check_harness import capture
    from trainfleet.rehearsal.simulation.provider import CLOUD_MODELS
    from trainfleet.rehearsal.simulation.schema import packages

    try:
        sent = capture(_program(name, arguments))
    except (TypeError, AttributeError, ValueError, AssertionError) as error:
        return [str(error)]
    return [
        str(mistake)
        for item in sent
        for mistake in CLOUD_MODELS[package].check(packages()[package], item.token, item.inputs)
        if not mistake.open  # a warning
    ]


def _program(name: str, arguments: dict[str, Any]) -> Callable[[], None]:
    module, cls = f"pulumi_{name}".rsplit(".", 1)
    found = getattr(importlib.import_module(module), cls)
    # Where a part of the SDK was imported by itself before, the attribute is the module of that name.
    resource = getattr(found, cls) if inspect.ismodule(found) else found
    return lambda: resource("thing", **arguments)


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def figures() -> dict[str, str]:
    """Return the figures that the pages quote."""
    checked = [check_row(row) for row in rows()]
    rejected = sum(each.rejected for each in checked)
    return {
        "held_out_mistakes": str(len(checked)),
        "held_out_rejected": str(rejected),
        "held_out_share": f"{rejected / len(checked):.0%}".replace("%", " %"),
        "held_out_corrected_rejected": str(sum(bool(each.right) for each in checked)),
    }


def main() -> int:
    """Print the figures. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.rejection_figure", description=(__doc__ or "").partition("\n\n")[0]
    )
    parser.add_argument("--rows", action="store_true", help="list each mistake and each false alarm")
    if parser.parse_args().rows:
        for each in map(check_row, rows()):
            print(
                f"{'rejected' if each.rejected else 'PASSES  '} {each.row.type}.{each.row.property}"
                f" {each.row.source}"
            )
            for message in each.right:
                print(f"  FALSE ALARM {message}")
    for name, text in figures().items():
        print(f"{name} = {text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
