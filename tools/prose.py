"""The readable text of a file: comments, docstrings and strings of Python, and the whole text of other
formats.

Wrapped lines are joined, so that a phrase is found across a line break, and code is left out. Each offset of
the text
still leads to its line in the file.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import PurePosixPath

BREAK = "\n"
"""Ends a chunk: no phrase continues across it."""

_TOKEN = re.compile(
    r"""(?P<comment>\#[^\n]*)
    |(?P<prefix>\b[rbufRBUF]{1,2}(?=["']))?
     (?:\"{3}(?P<long>(?:[^\\]|\\.)*?)\"{3}|'{3}(?P<long2>(?:[^\\]|\\.)*?)'{3}
       |"(?P<short>(?:[^"\\\n]|\\.)*)"|'(?P<short2>(?:[^'\\\n]|\\.)*)')""",
    re.VERBOSE | re.DOTALL,
)
_FIELD = re.compile(r"\{\{|\}\}|\{(?:[^{}]|\{[^{}]*\})*\}")
_ESCAPE = re.compile(r"\\[nrt]")
_TEMPLATE = re.compile(r"\{\{.*?\}\}|\{%.*?%\}", re.DOTALL)
_PROSE = (".md", ".html", ".j2", ".svg")


@dataclass
class Prose:
    """Text with the line of each offset."""

    text: str = ""
    _starts: list[int] = field(default_factory=list)
    _lines: list[int] = field(default_factory=list)

    def line(self, offset: int) -> int:
        """The line of the file that holds this offset of the text."""
        return self._lines[bisect_right(self._starts, offset) - 1]


class _Builder:
    def __init__(self) -> None:
        self.parts: list[str] = []
        self.size = 0
        self.prose = Prose()

    def add(self, text: str, line: int, joint: str) -> None:
        """Add one piece that starts in `line`, after `joint` (a space, BREAK or nothing)."""
        for number, part in enumerate(text.split("\n")):
            words = " ".join(part.split())
            if number and not words:
                joint = BREAK
                continue
            if not number and joint == "":  # adjacent strings: their own spaces count
                words = f"{' ' * part[:1].isspace()}{words}"
            if part[-1:].isspace():
                words += " "
            before = (
                joint if joint != " " or not self.parts or self.parts[-1][-1:] not in (" ", BREAK) else ""
            )
            self.parts.append(before + words)
            self.prose._starts.append(self.size + len(before))
            self.prose._lines.append(line + number)
            self.size += len(before) + len(words)
            joint = " "

    def done(self) -> Prose:
        self.prose.text = "".join(self.parts)
        return self.prose


def prose_of(path: str, source: str) -> Prose:
    """The text of a file; `path` decides the format.

    Python gives its comments, docstrings and strings, without the fields of f-strings. Markdown, HTML and
    templates
    give paragraphs. Every other format gives its lines, with the lines of one comment joined.
    """
    if path.endswith(".py"):
        return _python(source)
    if PurePosixPath(path).suffix in _PROSE:
        return _paragraphs(source)
    return _lines(source)


def _python(source: str) -> Prose:
    built = _Builder()
    end, line, last = 0, 1, ""
    for found in _TOKEN.finditer(source):
        gap = source[end : found.start()]
        line += gap.count("\n")
        kind = "comment" if found["comment"] is not None else "string"
        if gap.strip() or kind != last or (kind == "comment" and gap.count("\n") > 1):
            joint = BREAK
        else:
            joint = " " if kind == "comment" else ""
        built.add(_readable(found), line, joint)
        line += found.group().count("\n")
        end, last = found.end(), kind
    return built.done()


def _readable(found: re.Match[str]) -> str:
    if found["comment"] is not None:
        return found["comment"].lstrip("#!: ")
    text = next(
        each for each in (found["long"], found["long2"], found["short"], found["short2"]) if each is not None
    )
    if "f" in (found["prefix"] or "").lower():
        text = _FIELD.sub(lambda each: "{}" + "\n" * each.group().count("\n"), text)
    return _ESCAPE.sub("  ", text)


def _paragraphs(source: str) -> Prose:
    built = _Builder()
    source = _TEMPLATE.sub(lambda each: "{}" + "\n" * each.group().count("\n"), source)
    joint = BREAK
    for number, text in enumerate(source.split("\n"), start=1):
        if not text.strip():
            joint = BREAK
            continue
        built.add(text, number, joint)
        joint = BREAK if text.startswith("#") else " "  # a heading ends with its line
    return built.done()


def _lines(source: str) -> Prose:
    built = _Builder()
    in_comment = False
    for number, text in enumerate(source.split("\n"), start=1):
        bare = text.strip()
        comment = bare.startswith(("#", "//"))
        if bare.strip("#/ "):
            built.add(bare.lstrip("#/! "), number, " " if comment and in_comment else BREAK)
        in_comment = comment and bool(bare.strip("#/ "))
    return built.done()
