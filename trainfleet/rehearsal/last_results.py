"""The last diff and drift of each stack of a project, in the user's cache folder: `trainfleet ui` shows them.

One file per stack and command, which only the user can read. The projects used last are kept.
In CI nothing is kept: other jobs could read it in a shared cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from trainfleet.errors import TrainfleetError
from trainfleet.files import write_whole

KEPT_PROJECTS = 50


def folder(root: Path) -> Path:
    """The folder of a project's results; it may not exist yet."""
    from trainfleet.toolchain import cache_folder

    return cache_folder() / "results" / hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:32]


def keep(command: str, documents: Iterable[Mapping[str, Any]], given: Path | None) -> None:
    """Write the documents of a command, each with its `stack`. An unwritable cache is not an error.

    Args:
        command: `diff` or `drift`.
        documents: as `--json` prints them for one stack.
        given: the folder of the project; None for that of the current folder, if there is one.
    """
    from trainfleet.rehearsal.project_lookup import any_project_root

    if os.environ.get("CI"):
        return
    with contextlib.suppress(OSError, TrainfleetError):
        root = given or any_project_root()
        if given is None and not Path.cwd().is_relative_to(root):
            return
        target = folder(root)
        for document in documents:
            name = quote(str(document["stack"]).rsplit("/", 1)[-1], safe="")
            write_whole(target / f"{name}.{command}.json", json.dumps(document, default=str), 0o600)
        projects = [each for each in target.parent.iterdir() if each.is_dir()]
        projects.sort(key=lambda each: each.stat().st_mtime, reverse=True)
        for old in projects[KEPT_PROJECTS:]:
            shutil.rmtree(old, ignore_errors=True)
