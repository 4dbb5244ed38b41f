"""Keeps figures that several pages quote equal to their one source, docs/figures.toml, the tables of
docs/benchmarks.md to benchmarks/results/, and that of docs/reliability.md to tests/cluster/fault_rows.jsonl.

python -m tools.figures            # list pages whose figures differ; exit code 1 if there are any
python -m tools.figures --write    # update the pages
"""

from __future__ import annotations

import argparse
import functools
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from tools import benchmark_tables, fault_table
from trainfleet.errors import TrainfleetError

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "docs" / "figures.toml"
FAULTS = re.compile(r"(<!-- fault table -->\n).*?(<!-- /fault table -->)", re.DOTALL)
QUOTED = re.compile(r"(<!-- figure: (?P<name>\w+) -->)(?P<text>.*?)(<!-- /figure -->)", re.DOTALL)


def figures() -> dict[str, str]:
    """The figures by name, computed ones included."""
    table = tomllib.loads(SOURCE.read_text(encoding="utf-8"))
    return {
        name: str(row["text"]) if "text" in row else _computed(row["computed"]) for name, row in table.items()
    }


def _computed(what: str) -> str:
    if what == "policies":
        from trainfleet.policies.catalogue import RULES

        return str(len(RULES))
    if what.startswith("public_programs"):
        from tools import public_programs

        return public_programs.all_figures()[what]
    if what.startswith("recovery: "):
        return fault_table.recovery(what.partition(": ")[2], fault_table.read())
    if what in ("state_exports", "event_logs"):
        folder = ROOT / "tests" / "rehearsal" / "diff" / "exports"
        files = [file.name for file in folder.iterdir() if file.suffix in (".json", ".jsonl")]
        states = sum(name.startswith(("export-", "state-")) for name in files)
        return str(states if what == "state_exports" else len(files) - states)
    return _held_out()[what]


@functools.cache
def _held_out() -> dict[str, str]:
    # In a process of its own: it leaves Pulumi's settings and the event loop changed.
    command = [sys.executable, "-m", "tools.rejection_figure"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    lines = (line.partition(" = ") for line in done.stdout.splitlines())
    return {name: text for name, _, text in lines}


def pages() -> list[Path]:
    """The pages that may quote figures."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def updated(text: str, known: dict[str, str]) -> str:
    """The page with its figures and tables up to date.

    Raises:
        KeyError: the page quotes a figure that docs/figures.toml does not have.
        InputError: a table has no file, or one with mistakes.
    """
    text = benchmark_tables.updated(text)
    text = FAULTS.sub(
        lambda found: f"{found[1]}\n{fault_table.table(fault_table.read())}\n\n{found[2]}", text
    )
    return QUOTED.sub(lambda found: f"{found[1]}{known[found['name']]}{found[4]}", text)


def main() -> int:
    """Check or write. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.figures", description=(__doc__ or "").partition("\n\n")[0]
    )
    parser.add_argument("--write", action="store_true", help="update the pages")
    write, known = parser.parse_args().write, figures()
    try:
        stale = [page for page in pages() if updated(text := page.read_text(encoding="utf-8"), known) != text]
    except TrainfleetError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    for page in stale:
        print(f"{page.relative_to(ROOT)}: {'updated' if write else 'differs from its sources'}")
        if write:
            page.write_text(updated(page.read_text(encoding="utf-8"), known), encoding="utf-8")
    return int(bool(stale) and not write)


if __name__ == "__main__":
    sys.exit(main())
