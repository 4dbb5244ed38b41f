"""Pages of the repository as pages of the site: the place of each file, and links rewritten for that place.

Pages are written for the repository: a link may leave docs/ and name any file. On the site, the pages of
`PROJECT_PAGES` are in project/, and every other file that a page links to is shown on a page of source/.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT_PAGES = {
    "README.md": "project/overview.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "AGENTS.md": "project/agents.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "project/security.md",
}
"""Pages above docs/ by their place on the site."""
SOURCE = "source"
FENCE = re.compile(r"^(?P<fence>```+|~~~+).*?^(?P=fence)[ \t]*$\n?", re.MULTILINE | re.DOTALL)
TOKEN = re.compile(r"(?P<code>`+)(?!`).+?(?<!`)(?P=code)(?!`)|\]\((?P<target>[^)\s]+)(?P<rest>[^)]*)\)")
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
COMMENT_LINE = re.compile(r"^<!--(?:(?!-->).)*-->[ \t]*\n", re.MULTILINE | re.DOTALL)
LANGUAGES = {
    ".py": "python",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".toml": "toml",
    ".json": "json",
    ".md": "markdown",
}


def place(path: str) -> str:
    """Where a file of the repository is on the site, as mkdocs names sources.

    Args:
        path: the file or folder, from the root of the repository, such as `docs/diff.md`.
    """
    if path in PROJECT_PAGES:
        return PROJECT_PAGES[path]
    if path == "docs" or path.startswith("docs/"):
        inside = path.removeprefix("docs").lstrip("/")
        return inside if (ROOT / path).is_file() or not inside else f"{SOURCE}/{path}/index.md"
    return f"{SOURCE}/{path}/index.md" if (ROOT / path).is_dir() else f"{SOURCE}/{path}.md"


def origin(source: str) -> str | None:
    """The file of the repository that a page of the site is made of; nothing for a page of source/."""
    if source.startswith(f"{SOURCE}/"):
        return None
    by_place = {value: key for key, value in PROJECT_PAGES.items()}
    return by_place.get(source, f"docs/{source}")


def is_external(target: str) -> bool:
    """Whether a link leaves the repository, or stays on its page."""
    return "://" in target or target.startswith(("mailto:", "#"))


def targets(text: str, path: str) -> Iterator[str]:
    """The files and folders of the repository that a page links to.

    Args:
        text: the page.
        path: the page's file, from the root of the repository.
    """
    for part, is_fence in _parts(text):
        for found in () if is_fence else TOKEN.finditer(part):
            target = found["target"]
            if target and not is_external(target):
                yield _resolved(target.partition("#")[0], path)


def page_text(text: str, path: str) -> str:
    """A page as the site shows it: no comments outside its code, and links between places of the site."""

    def moved(found: re.Match[str]) -> str:
        target = found["target"]
        if target is None or is_external(target):
            return found[0]
        name, mark, anchor = target.partition("#")
        there = posixpath.relpath(place(_resolved(name, path)), posixpath.dirname(place(path)) or ".")
        return f"]({there}{mark}{anchor}{found['rest']})"

    return "".join(
        part if is_fence else TOKEN.sub(moved, COMMENT.sub("", COMMENT_LINE.sub("", part)))
        for part, is_fence in _parts(text)
    )


def source_text(path: str) -> str:
    """The page of source/ that shows a file, or lists a folder."""
    file = ROOT / path
    head = f"---\nsearch:\n  exclude: true\n---\n# `{path}`\n\n"
    if file.is_dir():
        names = sorted(each.name + "/" * each.is_dir() for each in file.iterdir() if _is_shown(each))
        return head + "\n".join(f"- `{name}`" for name in names) + "\n"
    body = file.read_text(encoding="utf-8")
    fence = "`" * (max(map(len, re.findall(r"`{3,}", body)), default=2) + 1)
    return f"{head}{fence}{LANGUAGES.get(file.suffix, 'text')}\n{body.rstrip()}\n{fence}\n"


def _is_shown(file: Path) -> bool:
    return not file.name.startswith((".", "__pycache__"))


def _resolved(target: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), target))


def _parts(text: str) -> Iterator[tuple[str, bool]]:
    """The parts of a page in order, each with whether it is a fenced block."""
    end = 0
    for found in FENCE.finditer(text):
        yield text[end : found.start()], False
        yield found[0], True
        end = found.end()
    yield text[end:], False
