"""A terminal without a window: applies output to lines of styled characters.

It knows the sequences that rich and Pulumi write; others are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

TOKEN = re.compile(
    r"\x1b\[(?P<arguments>[\d;?]*)(?P<command>[A-Za-z])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][A-Z0-9]"
    r"|\x1b[=>78]|(?P<control>[\r\n\b\t\x07])|(?P<text>[^\x1b\r\n\b\t\x07]+)"
)
STEPS = (0, 95, 135, 175, 215, 255)


@dataclass(frozen=True)
class Style:
    """How a character looks. `color` is 0 to 15 of the palette, or `#rrggbb`."""

    color: str = ""
    bold: bool = False
    dim: bool = False
    italic: bool = False
    underline: bool = False


PLAIN = Style()


class Terminal:
    """The lines that a terminal shows, with all that have scrolled away.

    Attributes:
        lines: each line's characters with their styles; the last `rows` of them are visible.
    """

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.lines: list[list[tuple[str, Style]]] = [[]]
        self._row = self._column = 0
        self._style = PLAIN

    @property
    def top(self) -> int:
        """The first line that is visible."""
        return max(len(self.lines) - self.rows, 0)

    def feed(self, text: str) -> None:
        """Apply output."""
        for found in TOKEN.finditer(text):
            if found["text"]:
                for each in found["text"]:
                    self._put(each)
            elif found["control"]:
                self._control(found["control"])
            elif found["command"]:
                self._command(found["command"], found["arguments"])

    def plain(self) -> str:
        """All lines as text, without spaces at their ends."""
        lines = ["".join(each for each, _ in line).rstrip() for line in self.lines]
        return "\n".join(lines).strip("\n") + "\n"

    def _put(self, character: str) -> None:
        if self._column == self.columns:
            self._column = 0
            self._down()
        line = self.lines[self._row]
        line.extend([(" ", PLAIN)] * (self._column - len(line)))
        line[self._column : self._column + 1] = [(character, self._style)]
        self._column += 1

    def _control(self, control: str) -> None:
        match control:
            case "\r":
                self._column = 0
            case "\n":
                self._down()
            case "\b":
                self._column = max(self._column - 1, 0)
            case "\t":
                self._column = min((self._column // 8 + 1) * 8, self.columns - 1)

    def _down(self) -> None:
        self._row += 1
        if self._row == len(self.lines):
            self.lines.append([])

    def _command(self, command: str, arguments: str) -> None:
        numbers = [int(each) if each.isdigit() else 0 for each in arguments.split(";")]
        count = max(numbers[0], 1)
        match command:
            case "A":
                self._row = max(self._row - count, self.top)
            case "B":
                self._row = min(self._row + count, len(self.lines) - 1)
            case "C":
                self._column = min(self._column + count, self.columns - 1)
            case "D":
                self._column = max(self._column - count, 0)
            case "G":
                self._column = min(count, self.columns) - 1
            case "K":
                self._erase(numbers[0])
            case "J" if numbers[0] == 0:
                self._erase(0)
                del self.lines[self._row + 1 :]
            case "m":
                self._style = styled(self._style, numbers)

    def _erase(self, what: int) -> None:
        line = self.lines[self._row]
        if what == 0:
            del line[self._column :]
        elif what == 1:
            line[: self._column + 1] = [(" ", PLAIN)] * min(self._column + 1, len(line))
        else:
            line.clear()


def styled(style: Style, numbers: list[int]) -> Style:
    """A style after an SGR sequence with these numbers."""
    left = iter(numbers)
    switches = {1: "bold", 2: "dim", 3: "italic", 4: "underline", 23: "-italic", 24: "-underline"}
    for number in left:
        if number == 0:
            style = PLAIN
        elif number in switches:
            name = switches[number]
            changed: dict[str, Any] = {name.removeprefix("-"): not name.startswith("-")}
            style = replace(style, **changed)
        elif number == 22:
            style = replace(style, bold=False, dim=False)
        elif number in (38, 48):
            color = _color(left)
            style = replace(style, color=color) if number == 38 else style
        elif 30 <= number <= 37 or 90 <= number <= 97:
            style = replace(style, color=str(number - 30 if number < 40 else number - 82))
        elif number == 39:
            style = replace(style, color="")
    return style


def _color(numbers: Iterator[int]) -> str:
    """The color that follows 38 or 48: `5;N` or `2;R;G;B`."""
    if next(numbers, 0) == 2:
        return "#" + "".join(f"{next(numbers, 0):02x}" for _ in range(3))
    number = next(numbers, 0)
    if number < 16:
        return str(number)
    if number >= 232:
        return "#" + f"{8 + 10 * (number - 232):02x}" * 3
    number -= 16
    return "#" + "".join(f"{STEPS[each]:02x}" for each in (number // 36, number // 6 % 6, number % 6))
