"""The tables of docs/benchmarks.md, from the files of benchmarks/results/.

NAME.json is what `python -m benchmarks.NAME --record` wrote; its table is what that benchmark prints. A .toml
file was entered by hand from the output of the command that it names, and goes when there is a .json file.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import re
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

from trainfleet.errors import InputError, Problem

RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results"
BLOCK = re.compile(r"(<!-- table: (?P<name>\w+) -->\n)(?P<text>.*?)(<!-- /table -->)", re.DOTALL)


class EnteredByHand(BaseModel):
    """A table, with where and when it was measured."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    entered: Literal["by hand"]
    command: str
    date: str
    machine: str
    load: str
    """The machine's load, of which the benchmark itself is a part."""
    runs: str
    """How often it was measured."""
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @field_validator("rows")
    @classmethod
    def _as_long_as_the_columns(
        cls, rows: tuple[tuple[str, ...], ...], info: ValidationInfo
    ) -> tuple[tuple[str, ...], ...]:
        wrong = [row for row in rows if len(row) != len(info.data.get("columns", row))]
        if wrong:
            raise ValueError(f"another number of cells than columns: {wrong}")
        return rows

    def text(self) -> str:
        """Return the table with its caption."""
        lines = [self.columns, ("---",) * len(self.columns), *self.rows]
        table = "\n".join(_line(line) for line in lines)
        what = (
            f"{self.command}, entered by hand: {self.date}, {self.machine}; load: {self.load}; {self.runs}."
        )
        return f"{what}\n\n{table}\n"


def _line(cells: tuple[str, ...]) -> str:
    if set(cells) == {"---"}:
        return "|" + "---|" * len(cells)
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)


def rendered(name: str, folder: Path = RESULTS) -> str:
    """Return the text between the markers of a table.

    Raises:
        InputError: the table has no file, two files, or one with mistakes.
    """
    recorded, by_hand = folder / f"{name}.json", folder / f"{name}.toml"
    if recorded.is_file() and by_hand.is_file():
        raise _wrong(by_hand, f"{recorded.name} is newer", "remove the file that was entered by hand")
    if recorded.is_file():
        return _recorded(name, json.loads(recorded.read_text(encoding="utf-8")))
    if not by_hand.is_file():
        raise _wrong(recorded, "does not exist", f"python -m benchmarks.{name} --record")
    try:
        return EnteredByHand.model_validate(tomllib.loads(by_hand.read_text(encoding="utf-8"))).text()
    except ValueError as error:
        raise _wrong(by_hand, str(error), "the keys of the other files") from error


def _wrong(file: Path, what: str, fix: str) -> InputError:
    return InputError("a table cannot be written", [Problem(file.name, what, fix)])


def _recorded(name: str, result: dict[str, Any]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        importlib.import_module(f"benchmarks.{name}").show(result["document"])
    # Markdown would run the lines around a table together.
    text = re.sub(r"(?<=[^\n|])\n(?=[^\n|])", "; ", printed.getvalue().strip())
    return f"`{result['command']}`, recorded at {result['commit']}:\n\n{text}\n"


def updated(text: str) -> str:
    """Return the page with its tables up to date."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{rendered(found['name'])}\n{found[4]}", text)
