"""Print the table of docs/reliability.md from the rows of tests/cluster/test_fault_table.py.

export TRAINFLEET_FAULT_ROWS=rows.jsonl TRAINFLEET_REPEATS=5
python -m pytest -m cluster tests/cluster/test_fault_table.py
python -m tools.fault_table rows.jsonl

The page has the table of tests/cluster/fault_rows.jsonl; `python -m tools.figures --write` updates it.
"""

from __future__ import annotations

import argparse
import collections
import json
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROWS = Path(__file__).resolve().parent.parent / "tests" / "cluster" / "fault_rows.jsonl"
GOALS_S = {
    "worker process killed": 10,
    "worker pod deleted": 20,
    "head pod deleted": 45,
    "head pod deleted, with GCS fault tolerance": 45,
    "node stopped": 60,
    "node stopped, with two workers as the minimum": 60,
}
"""Seconds to the next step that docs/reliability.md promises; other faults have none."""
COLUMNS = ("fault", "n", "min", "median", "max", "goal", "to a new step, median", "restarted", "load")


def read(file: Path = ROWS) -> list[dict[str, Any]]:
    """The rows of a file."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def recovery(fault: str, rows: Iterable[Mapping[str, Any]]) -> str:
    """The seconds from a fault to the first new step, from the least to the most.

    Raises:
        KeyError: there is no row of this fault.
    """
    seconds = [float(row["new_step"]) for row in rows if str(row["fault"]).partition(": ")[2] == fault]
    if not seconds:
        raise KeyError(fault)
    return f"{min(seconds):.0f} to {max(seconds):.0f} s"


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    """A Markdown table with a line per fault, in the order in which they first appear.

    Args:
        rows: `fault` (`STRATEGY: FAULT`), `next_step` and `new_step` in seconds, `restarted` (0 or 1) and
            `load`. A step after a restart is new once those since the newest checkpoint have been repeated.
    """
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(str(row["fault"]).partition(": ")[2], []).append(row)
    lines = [_line(fault, each) for fault, each in found.items()]
    return "\n".join([_row(COLUMNS), "|---" * len(COLUMNS) + "|", *lines])


def _line(fault: str, rows: list[Mapping[str, Any]]) -> str:
    seconds = [float(row["next_step"]) for row in rows]
    loads = [float(row["load"]) for row in rows]
    restarted = sum(int(row["restarted"]) for row in rows)
    strategies = collections.Counter(str(row["fault"]).partition(": ")[0] for row in rows)
    cells = [fault, ", ".join(f"{count} {strategy}" for strategy, count in strategies.items())]
    cells += [_short(each) for each in (min(seconds), statistics.median(seconds), max(seconds))]
    cells += [str(GOALS_S.get(fault, "")), _short(statistics.median(float(row["new_step"]) for row in rows))]
    return _row([*cells, f"{restarted} of {len(rows)}", f"{min(loads):.0f} to {max(loads):.0f}"])


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _short(seconds: float) -> str:
    return f"{seconds:.1f}" if seconds < 10 else f"{seconds:.0f}"


def main() -> None:
    """Command line entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", type=Path, nargs="?", default=ROWS, help="the file of TRAINFLEET_FAULT_ROWS")
    print(table(read(parser.parse_args().rows)))


if __name__ == "__main__":
    main()
