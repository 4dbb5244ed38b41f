"""Which files of a folder are not code: rules of .gitignore and .trainfleetignore files, and defaults.

The syntax and the precedence are git's (https://git-scm.com/docs/gitignore); tests compare them with git.
Except that a set in brackets cannot contain a slash.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

FILES = (".gitignore", ".trainfleetignore")
"""Read in every folder; the rules of the second take precedence."""
DEFAULTS = """
.git/
.hg/
.svn/
__pycache__/
*.py[cod]
.venv/
venv/
node_modules/
.ipynb_checkpoints/
.mypy_cache/
.pytest_cache/
.ruff_cache/
.DS_Store
# May hold keys, and everybody who reads the run's storage reads its code.
.env
.env.*
.netrc
id_rsa
id_ed25519
"""
"""Ignored unless a rule with `!` includes them again."""


@dataclass(frozen=True)
class Rule:
    """One line of an ignore file. `base` is the file's folder; empty: the top folder."""

    base: str
    pattern: re.Pattern[str]
    includes: bool
    folders_only: bool

    def matches(self, path: str, *, is_folder: bool) -> bool:
        prefix = f"{self.base}/" if self.base else ""
        if not path.startswith(prefix) or (self.folders_only and not is_folder):
            return False
        return self.pattern.fullmatch(path[len(prefix) :]) is not None


@dataclass(frozen=True)
class IgnoreRules:
    """Rules in the order of their precedence. Paths are relative to the top folder, with slashes."""

    rules: tuple[Rule, ...] = ()

    def ignores(self, path: str, *, is_folder: bool) -> bool:
        """Whether a file or folder is ignored; the last matching rule decides."""
        for rule in reversed(self.rules):
            if rule.matches(path, is_folder=is_folder):
                return not rule.includes
        return False

    def with_text(self, text: str, base: str = "") -> IgnoreRules:
        """These rules, then those of an ignore file in the folder `base`."""
        return replace(self, rules=(*self.rules, *_parse(text, base)))

    def with_files_of(self, folder: Path, base: str) -> IgnoreRules:
        """These rules, then those of the ignore files in `folder`, whose path is `base`."""
        found = self
        for name in FILES:
            if (folder / name).is_file():
                text = (folder / name).read_text(encoding="utf-8-sig", errors="replace")
                found = found.with_text(text, base)
        return found


def rules_above(folder: Path) -> tuple[IgnoreRules, str]:
    """The defaults and the rules of a git checkout's folders above `folder`; its path in the checkout."""
    rules = IgnoreRules().with_text(DEFAULTS)
    top = next((each for each in (folder, *folder.parents) if (each / ".git").exists()), folder)
    base = folder.relative_to(top)
    for above in reversed(base.parents if base.parts else ()):
        rules = rules.with_files_of(top / above, "" if above == Path() else above.as_posix())
    return rules, "" if base == Path() else base.as_posix()


def _parse(text: str, base: str) -> Iterator[Rule]:
    for raw in text.split("\n"):
        line = re.sub(r"(?<!\\)((?:\\\\)*) +$", r"\1", raw.removesuffix("\r"))
        if not line or line.startswith("#"):
            continue
        includes = line.startswith("!")
        line = line[1:] if includes else line
        folders_only = line.endswith("/")
        line = line[:-1] if folders_only else line
        expression = _expression(line.removeprefix("/").split("/"), anywhere="/" not in line)
        if expression is not None:
            yield Rule(base, re.compile(expression), includes, folders_only)


def _expression(parts: list[str], *, anywhere: bool) -> str | None:
    """The regular expression of a pattern, None if it matches nothing; `anywhere`: it also matches in
    subfolders.
    """
    found = ["(?:.*/)?"] if anywhere else []
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        if re.fullmatch(r"\*\*+", part):
            found.append(".+" if last else "(?:.*/)?")
            continue
        segment = _segment(part)
        if not segment:
            return None
        found.append(segment + ("" if last else "/"))
    return "(?s:" + "".join(found) + ")"


def _segment(part: str) -> str | None:
    """One part of a pattern, between slashes. None: it is not complete, and so matches nothing."""
    found, rest = [], part
    while rest:
        char, rest = rest[0], rest[1:]
        if char == "*":
            rest = rest.lstrip("*")
            found.append("[^/]*")
        elif char == "?":
            found.append("[^/]")
        elif char == "[":
            if (bracket := _bracket(rest)) is None:
                return None
            expression, rest = bracket
            found.append(expression)
        elif char == "\\":
            if not rest:
                return None
            found.append(re.escape(rest[0]))
            rest = rest[1:]
        else:
            found.append(re.escape(char))
    return "".join(found)


_TOKEN = re.compile(r"\\.|\[:[^\]]*:\]|[^\\]", re.DOTALL)
_CLASSES = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "blank": " \t",
    "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": r"!-/:-@\[-`{-~",
    "space": r" \t\n\r\f\v",
    "upper": "A-Z",
    "xdigit": "0-9A-Fa-f",
}


def _bracket(text: str) -> tuple[str, str] | None:
    """The regular expression of a set such as `[!a-c]`, and what follows it; `text` begins after the `[`.
    None: it does not end, or has an unknown class.
    """
    first = at = int(text.startswith(("!", "^")))
    items, before = list[str](), ""
    while token := _TOKEN.match(text, at):
        if token[0] == "]" and at > first:
            break
        at = token.end()
        if len(token[0]) > 2:
            name = token[0][2:-2]
            if name not in _CLASSES:
                return None
            items.append(_CLASSES[name])
            before = ""
        elif token[0] == "-" and before and (end := _TOKEN.match(text, at)) and end[0] != "]":
            at, last = end.end(), end[0][-1]
            items += [f"{re.escape(before)}-{re.escape(last)}"] if before <= last else []
            before = ""
        else:
            before = token[0][-1]
            items.append(re.escape(before))
    else:
        return None
    chars = "".join(items)
    expression = f"[^/{chars}]" if first else f"(?!/)[{chars}]" if chars else "(?!)"
    return expression, text[at + 1 :]
