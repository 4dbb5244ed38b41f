"""Reject the project's old private words in identifiers and text; the terms are in tools/vocabulary.toml.

    python -m tools.vocabulary                  check the whole tree
    python -m tools.vocabulary --only docs      check one folder or file
    python -m tools.vocabulary FILE...          check these files (pre-commit)
    python -m tools.vocabulary --count folder   count the hits per folder, or per `term`

Exit codes: 0 no hit, 1 hits, 2 the term list or a path is not valid.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

from tools.prose import Prose, prose_of

ROOT = Path(__file__).resolve().parent.parent
TERMS = Path(__file__).with_suffix(".toml")
NAME_KINDS = ("module", "class", "function", "parameter", "name")
KINDS = (*NAME_KINDS, "text")


class TermError(Exception):
    """Raised when tools/vocabulary.toml is not valid, or a path to check does not exist."""


@dataclass(frozen=True)
class Term:
    """One word or phrase that is rejected.

    Attributes:
        old: a regular expression in lower case. Identifiers are matched as words: `_maxNodes` is read as `max
        nodes`.
        kinds: where the term is rejected; a subset of KINDS.
        write: what to write instead.
        whole: match only an identifier that consists of nothing else.
        only: path patterns outside which the term is not checked; empty means everywhere.
        allow: path patterns in which the term may stay, each with a reason.
        hits: examples that must be rejected. Tests check them.
        fine: examples that must pass. Tests check them.
    """

    old: str
    kinds: frozenset[str]
    write: str
    whole: bool = False
    only: tuple[str, ...] = ()
    allow: tuple[tuple[str, str], ...] = ()
    hits: tuple[str, ...] = ()
    fine: tuple[str, ...] = ()
    bounded: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bounded", re.compile(f"(?<!\\w)(?:{self.old})(?!\\w)", re.MULTILINE))

    def covers(self, path: str) -> bool:
        """Whether the term is checked in this file."""
        if self.only and not any(fnmatchcase(path, each) for each in self.only):
            return False
        return not any(fnmatchcase(path, each) for each, _ in self.allow)

    def in_name(self, words: str) -> str | None:
        """The rejected part of an identifier that was split into words, or None."""
        found = self.bounded.fullmatch(words) if self.whole else self.bounded.search(words)
        return found.group() if found else None


@dataclass(frozen=True)
class Hit:
    """One rejected word, with its place in the tree."""

    path: str
    line: int
    old: str
    term: Term
    name: str = ""

    def __str__(self) -> str:
        inside = f" (in the name `{self.name}`)" if self.name else ""
        return f'{self.path}:{self.line}: "{self.old}" -> write "{self.term.write}"{inside}'


@dataclass(frozen=True)
class Vocabulary:
    """The terms, and which files of the tree they apply to."""

    terms: tuple[Term, ...]
    files: tuple[str, ...]
    skip: tuple[str, ...]

    def reads(self, path: str) -> bool:
        """Whether a file of this path is checked at all."""
        name = PurePosixPath(path).name
        chosen = any(fnmatchcase(name, each) or path == each for each in self.files)
        return chosen and not any(fnmatchcase(path, each) for each in self.skip)


def load(file: Path = TERMS) -> Vocabulary:
    """Read the term list.

    Raises:
        TermError: the file is not valid; names the entry.
    """
    document = tomllib.loads(file.read_text(encoding="utf-8"))
    terms = []
    for each in document["term"]:
        try:
            terms.append(_term(each))
        except (KeyError, TypeError, ValueError, re.error) as error:
            raise TermError(f"{file.name}: entry {each.get('old', each)!r} is not valid: {error}") from error
    skip = tuple(path for row in document["skip"] for path in row["paths"])
    return Vocabulary(tuple(terms), tuple(document["files"]), skip)


def _term(row: dict[str, Any]) -> Term:
    """One row of the list, with `identifier` written out as every kind of name."""
    known = {"old", "in", "write", "whole", "only", "allow", "hits", "fine"}
    if unknown := set(row) - known:
        raise ValueError(f"unknown keys {sorted(unknown)}")
    kinds = {kind for each in row["in"] for kind in (NAME_KINDS if each == "identifier" else (each,))}
    if not kinds <= set(KINDS):
        raise ValueError(f"`in` takes {', '.join(KINDS)} and identifier, not {sorted(kinds - set(KINDS))}")
    if not all(each["reason"] for each in row.get("allow", [])):
        raise ValueError("each allowed path needs a reason")
    allow = tuple((each["path"], each["reason"]) for each in row.get("allow", []))
    lists = {key: tuple(row.get(key, ())) for key in ("only", "hits", "fine")}
    return Term(row["old"], frozenset(kinds), row["write"], row.get("whole", False), allow=allow, **lists)


class Checker:
    """Checks files. Keeps one combined expression per set of terms, and the terms found in each name."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._folders: set[str] = set()
        self._suspects: dict[str, bool] = {}
        self._names: dict[tuple[str, str], list[tuple[Term, str]]] = {}
        self._combined: dict[tuple[Term, ...], re.Pattern[str]] = {}

    def check(self, path: str, source: str) -> list[Hit]:
        """Every hit in one file, in order of lines.

        Args:
            path: relative to the checkout, with `/`; selects the terms.
            source: the file's content.
        """
        hits = [*self._in_path(path), *self._in_text(path, prose_of(path, source))]
        if path.endswith(".py"):
            hits += self._in_code(path, source)
        return sorted(hits, key=lambda hit: (hit.line, hit.old))

    def _in_path(self, path: str) -> Iterator[Hit]:
        """Names of the file and of folders that no earlier file of this run was in."""
        *folders, file = PurePosixPath(path).parts
        if file.endswith(".py") and file != "__init__.py":
            yield from self._named(path, 1, "module", file.removesuffix(".py").removeprefix("test_"))
        for depth, folder in enumerate(folders):
            known = "/".join(folders[: depth + 1])
            if known not in self._folders:
                self._folders.add(known)
                yield from self._named(path, 1, "module", folder)

    def _in_code(self, path: str, source: str) -> Iterator[Hit]:
        if not any(self._suspect(name) for name in set(_NAME.findall(source))):
            return  # parsing costs most of the time, and few files need it
        try:
            tree = ast.parse(source)
        except SyntaxError:
            return  # the linter reports it
        for line, kind, name in sorted(set(_definitions(tree))):
            yield from self._named(path, line, kind, name)

    def _suspect(self, name: str) -> bool:
        """Whether any term rejects this name, as whatever it is defined."""
        if name not in self._suspects:
            words = words_of(name)
            found = (term.in_name(words) for term in self.vocabulary.terms if term.kinds - {"text", "module"})
            self._suspects[name] = any(found)
        return self._suspects[name]

    def _named(self, path: str, line: int, kind: str, name: str) -> Iterator[Hit]:
        key = (kind, name)
        if key not in self._names:
            words = words_of(name)
            found = ((term, term.in_name(words)) for term in self.vocabulary.terms if kind in term.kinds)
            self._names[key] = [(term, old) for term, old in found if old]
        for term, old in self._names[key]:
            if term.covers(path):
                yield Hit(path, line, old, term, name)
                return

    def _in_text(self, path: str, prose: Prose) -> Iterator[Hit]:
        terms = tuple(term for term in self.vocabulary.terms if "text" in term.kinds and term.covers(path))
        if terms not in self._combined:
            self._combined[terms] = re.compile(f"(?<!\\w)(?:{_by_letter(terms)})(?!\\w)", re.MULTILINE)
        text = prose.text.translate(_LOWER)
        for found in self._combined[terms].finditer(text):
            for term in terms:
                if same := term.bounded.match(text, found.start()):
                    yield Hit(path, prose.line(found.start()), same.group(), term)
                    break


_LOWER = {ord(letter): letter.lower() for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
"""Keeps every offset, which `str.lower` does not for some letters outside ASCII."""
_NAME = re.compile(r"[A-Za-z_]\w*")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def words_of(name: str) -> str:
    """An identifier as lower-case words: `_maxNodes` and `MAX_NODES` become `max nodes`."""
    return " ".join(_CAMEL.sub("_", name).lower().replace("_", " ").split())


def _by_letter(terms: Iterable[Term]) -> str:
    """All expressions as one, grouped by first letter so that most positions fail at once."""
    groups: dict[str, list[str]] = {}
    others = []
    for term in terms:
        plain = re.match(r"[a-z](?![?*+{|])", term.old) and not _has_top_level_bar(term.old)
        if plain:
            groups.setdefault(term.old[0], []).append(term.old[1:])
        else:
            others.append(f"(?:{term.old})")
    grouped = [f"{letter}(?:{'|'.join(rest)})" for letter, rest in sorted(groups.items())]
    return "|".join([*grouped, *others])


def _has_top_level_bar(expression: str) -> bool:
    bare = re.sub(r"\\.|\[[^]]*\]", "", expression)
    while (less := re.sub(r"\([^()]*\)", "", bare)) != bare:
        bare = less
    return "|" in bare


_NAMED_BY = {
    ast.Name: ("name", "id"),
    ast.Attribute: ("name", "attr"),
    ast.arg: ("parameter", "arg"),
    ast.FunctionDef: ("function", "name"),
    ast.AsyncFunctionDef: ("function", "name"),
    ast.ClassDef: ("class", "name"),
    ast.ExceptHandler: ("name", "name"),
    ast.MatchAs: ("name", "name"),
    ast.MatchStar: ("name", "name"),
    ast.MatchMapping: ("name", "rest"),
    ast.alias: ("name", "asname"),
}
"""Which nodes give something a name, of which kind, and in which field."""


def _definitions(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Line, kind and name of everything that a module names itself. Uses of other names do not count."""
    for node in ast.walk(tree):
        if type(node) not in _NAMED_BY or not isinstance(getattr(node, "ctx", _STORE), ast.Store):
            continue
        kind, key = _NAMED_BY[type(node)]
        if name := getattr(node, key):
            yield node.lineno, kind, name  # type: ignore[attr-defined]  # each of these nodes has a line


_STORE = ast.Store()


def tracked(root: Path = ROOT) -> list[str]:
    """Every file of the checkout that git does not ignore; links, which name the same file again, are left
    out.

    Raises:
        TermError: `root` is not a git checkout.
    """
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TermError(f"cannot list the files of {root}: {done.stderr.strip()}")
    paths = sorted(set(done.stdout.split("\0")) - {""})
    return [path for path in paths if (root / path).is_file() and not (root / path).is_symlink()]


def check_files(paths: Iterable[str], vocabulary: Vocabulary, root: Path = ROOT) -> list[Hit]:
    """Check files by their paths in the checkout; those that the term list skips are passed over."""
    checker = Checker(vocabulary)
    hits: list[Hit] = []
    for path in paths:
        if vocabulary.reads(path):
            hits += checker.check(path, (root / path).read_text(encoding="utf-8", errors="replace"))
    return hits


def _chosen(arguments: argparse.Namespace, root: Path) -> list[str]:
    """The paths to check: the files given, or those of the tree below --only."""
    if arguments.files:
        return [_inside(each, root) for each in arguments.files]
    paths = tracked(root)
    if arguments.only is None:
        return paths
    only = _inside(arguments.only, root)
    return [path for path in paths if only in (".", path) or path.startswith(f"{only}/")]


def _inside(given: str, root: Path) -> str:
    path = Path(given).resolve()
    if not path.exists() or not path.is_relative_to(root):
        raise TermError(f"{given} does not exist in {root}")
    return path.relative_to(root).as_posix()


def _counts(hits: Sequence[Hit], by: str) -> str:
    """A table of hits per folder (two levels) or per term, most first."""

    def group(hit: Hit) -> str:
        return "/".join(PurePosixPath(hit.path).parts[:-1][:2]) or "." if by == "folder" else hit.term.old

    names = Counter(group(hit) for hit in hits if hit.name)
    texts = Counter(group(hit) for hit in hits if not hit.name)
    lines = [f"{'names':>7} {'text':>7}  {by}"]
    lines += [f"{names[each]:7} {texts[each]:7}  {each}" for each, _ in (names + texts).most_common()]
    return "\n".join([*lines, f"{names.total():7} {texts.total():7}  in all"])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the check; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.vocabulary", description="Reject the project's old words."
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help="check these files instead of the tree")
    parser.add_argument("--only", metavar="PATH", help="check one folder or file of the tree")
    parser.add_argument(
        "--count", choices=("folder", "term"), help="print the number of hits instead of each hit"
    )
    arguments = parser.parse_args(argv)
    try:
        hits = check_files(_chosen(arguments, ROOT), load())
    except TermError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if arguments.count:
        print(_counts(hits, arguments.count))
    elif hits:
        print("\n".join(map(str, hits)))
        print(f"{len(hits)} old words; CONTRIBUTING.md has the glossary, {TERMS.relative_to(ROOT)} the terms")
    return 1 if hits else 0


if __name__ == "__main__":
    sys.exit(main())
