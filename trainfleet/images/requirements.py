"""The locked packages that `--requirements FILE` adds to an image: each with its version and hashes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from trainfleet.errors import InputError, Problem

_PIN = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)(?:\[[^\]]*\])?==(?P<version>[^\s;\\]+)")
LOCK = "uv pip compile --generate-hashes --no-emit-index-url requirements.in -o requirements.lock"


def check_requirements(file: Path, image_locks: Sequence[Path]) -> None:
    """Reject a file that does not lock what it installs, or that changes a package of the image.

    Raises:
        InputError: no such file, or every line that is not `name==version` with hashes.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        what = getattr(error, "strerror", None) or "is not text"
        raise InputError("cannot read the requirements", [Problem(str(file), what, LOCK)]) from error
    versions = {
        _normal(found["name"]): (found["version"], lock)
        for lock in image_locks
        for _, found, _ in _rows(lock.read_text(encoding="utf-8"))
        if found
    }
    problems = []
    for number, found, line in _rows(text):
        where = f"{file}:{number}"
        if found is None:
            problems.append(Problem(where, f"`{_short(line)}` does not pin a version", LOCK))
        elif "--hash=sha256:" not in line:
            problems.append(Problem(where, f"`{_short(line)}` has no hash", LOCK))
        elif (named := versions.get(_normal(found["name"]))) and named[0] != found["version"]:
            fix = f"lock it again with --constraints images/{named[1].name}"
            problems.append(Problem(where, f"the image has {_normal(found['name'])}=={named[0]}", fix))
    if not problems and not _rows(text):
        problems.append(Problem(str(file), "names no package", LOCK))
    if problems:
        raise InputError("cannot install these requirements", problems)


def _rows(text: str) -> list[tuple[int, re.Match[str] | None, str]]:
    """Each requirement: the number of its first line, its pin if it has one, and the text."""
    rows: list[tuple[int, re.Match[str] | None, str]] = []
    continued = False
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if line and not line.startswith("#"):
            if continued:
                start, found, before = rows[-1]
                rows[-1] = (start, found, f"{before} {line}")
            else:
                rows.append((number, _PIN.match(line), line))
        continued = line.endswith("\\")
    return rows


def _normal(name: str) -> str:
    """A package's normalized name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _short(line: str) -> str:
    return line.split("--hash", maxsplit=1)[0].rstrip(" \\")
