"""Recordings of a terminal in asciinema's format v2: a header, then `[seconds, "o", text]` per output."""

from __future__ import annotations

import codecs
import json
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COLUMNS, ROWS = 100, 28
TOGETHER_S = 1.0
"""Redraws of a line within this time are one event, the last one."""
REDRAW = re.compile(r"\r\x1b\[2K[^\n]*?(?=\r\x1b\[2K)")


@dataclass(frozen=True)
class Cast:
    """A recording.

    Attributes:
        command: what ran, as it is shown.
        exit_code: how it ended.
        events: seconds since the start, and the text that the terminal got then.
    """

    command: str
    exit_code: int
    events: tuple[tuple[float, str], ...]
    columns: int = COLUMNS
    rows: int = ROWS

    def text(self) -> str:
        """The file's content."""
        header = {"version": 2, "width": self.columns, "height": self.rows, "command": self.command}
        header |= {"env": {"TERM": "xterm-256color"}, "exit_code": self.exit_code}
        lines = [header, *([round(seconds, 3), "o", text] for seconds, text in self.events)]
        return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def read(text: str) -> Cast:
    """The recording in a file.

    Raises:
        ValueError: the text is not a recording of version 2.
    """
    header, *lines = map(json.loads, text.splitlines())
    if header.get("version") != 2:
        raise ValueError("not a recording in asciinema's format v2")
    events = tuple((float(at), str(data)) for at, kind, data in lines if kind == "o")
    return Cast(header["command"], header["exit_code"], events, header["width"], header["height"])


def record(command: Sequence[str], shown: str, hidden: Mapping[str, str]) -> Cast:
    """Run a command in a terminal of its own, which also prints here, and record what it writes.

    Args:
        command: program and arguments; it runs in the root of the checkout.
        shown: the command as the recording shows it.
        hidden: text of this machine, such as paths, and what the recording has instead.
    """
    master, slave = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
    started = time.monotonic()
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=slave, stderr=slave
    )
    os.close(slave)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    events: list[tuple[float, str]] = []
    while data := _read(master):
        at, text = time.monotonic() - started, decoder.decode(data)
        sys.stdout.write(text)
        sys.stdout.flush()
        events.append((at, text))
    os.close(master)
    return Cast(shown, process.wait(), replaced(merged(events), hidden))


def merged(events: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """Events in which a line that is redrawn several times within `TOGETHER_S` is drawn once.

    An event that adds lines starts a new one, so that lines appear when they were written.
    """
    result: list[tuple[float, str]] = []
    for at, text in events:
        if result and at - result[-1][0] < TOGETHER_S and "\n" not in text and "\n" not in result[-1][1]:
            result[-1] = (result[-1][0], REDRAW.sub("", result[-1][1] + text))
        else:
            result.append((at, REDRAW.sub("", text)))
    return result


def replaced(events: Sequence[tuple[float, str]], hidden: Mapping[str, str]) -> tuple[tuple[float, str], ...]:
    """Events without the hidden texts, also where one is divided between two events.

    The text that replaces it belongs to the event in which the hidden text starts.
    """
    times, texts = [at for at, _ in events], [text for _, text in events]
    for needle in sorted(hidden, key=len, reverse=True):
        whole = "".join(texts)
        start = whole.find(needle)
        while start >= 0:
            texts = _cut(texts, start, len(needle), hidden[needle])
            whole = "".join(texts)
            start = whole.find(needle, start + len(hidden[needle]))
    return tuple((at, text) for at, text in zip(times, texts, strict=True) if text)


def _cut(texts: list[str], start: int, length: int, instead: str) -> list[str]:
    """The texts with `instead` for `length` characters from `start`, counted over all of them."""
    result, position = [], 0
    for text in texts:
        left = min(max(start - position, 0), len(text))
        right = min(max(start + length - position, 0), len(text))
        starts_here = position <= start < position + len(text)
        result.append(text[:left] + (instead if starts_here else "") + text[right:])
        position += len(text)
    return result


def _read(master: int) -> bytes:
    try:
        return os.read(master, 65536)
    except OSError:  # Linux: the last process that has the terminal open has ended
        return b""
