"""Which files of a folder are not code: rules of .gitignore and .trainfleetignore files, and defaults.

The syntax and the precedence are git's (https://git-scm.com/docs/gitignore); tests compare them with git.
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
                found = found.with_text((folder / name).read_text(encoding="utf-8", errors="replace"), base)
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
    for raw in text.splitlines():
        line = re.sub(r"(?<!\\)((?:\\\\)*) +$", r"\1", raw)
        if not line or line.startswith("#"):
            continue
        includes = line.startswith("!")
        line = line[1:] if includes else line
        folders_only = line.endswith("/")
        if parts := [part for part in line.split("/") if part]:
            anywhere = "/" not in line.rstrip("/")
            yield Rule(base, re.compile(_expression(parts, anywhere=anywhere)), includes, folders_only)


def _expression(parts: list[str], *, anywhere: bool) -> str:
    """The regular expression of a pattern; `anywhere`: it also matches in subfolders."""
    found = ["(?:.*/)?"] if anywhere else []
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        if part == "**":
            found.append(".+" if last else "(?:.*/)?")
        else:
            found.append(_segment(part) + ("" if last else "/"))
    return "(?s:" + "".join(found) + ")"


def _segment(part: str) -> str:
    """One part of a pattern, between slashes."""
    tokens = re.findall(r"\\.|\[!?\]?[^\]]*\]|\*+|.", part, re.DOTALL)
    found = []
    for token in tokens:
        if token.startswith("*"):
            found.append("[^/]*")
        elif token == "?":
            found.append("[^/]")
        elif len(token) > 2 and token.startswith("["):
            inner = token[1:-1]
            negated = inner[0] in "!^"
            chars = (inner[1:] if negated else inner).replace("\\", "\\\\").replace("[", "\\[")
            found.append(f"(?!/)[{'^' if negated else ''}{chars.replace(']', chr(92) + ']')}]")
        else:
            found.append(re.escape(token[1:] if len(token) == 2 and token[0] == "\\" else token))
    return "".join(found)
