"""What launches on several clusters record of their runs, for `trainfleet runs` and the next launch."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from trainfleet.errors import InputError, Problem

STATE = "clusters.json"
UNATTENDED = ("starting", "detached")
"""How a run is recorded that may continue without its launch; one that is `starting` if that was killed."""


def folder_of(name: str) -> Path:
    """Where the group's report, state and logs are. Its runs are in folders of their own."""
    return (Path("runs") / f"{name}.clusters").absolute()


def recorded(name: str) -> list[dict[str, Any]]:
    """The runs of a group that was launched from this folder, as `clusters.json` has them.

    Raises:
        InputError: the file cannot be read, or is not that of a group.
    """
    file = folder_of(name) / STATE
    try:
        found = [dict(each) for each in json.loads(file.read_text(encoding="utf-8"))["clusters"]]
        if all(isinstance(each[key], str) for each in found for key in ("run", "status")):
            return found
        what = "is not the record of a launch on several clusters"
    except OSError as error:
        if not os.path.exists(file):  # noqa: PTH110 - Path.exists raises for a name that is too long
            return []
        what = error.strerror or str(error)
    except (ValueError, KeyError, TypeError):
        what = "is not the record of a launch on several clusters"
    fix = "stop its runs by their own names (`trainfleet runs list`), then delete it"
    raise InputError("cannot read the runs of a launch", [Problem(str(file), what, fix)])


def runs_of(name: str) -> list[Path]:
    """The folders of the unfinished runs of a group that was launched from this folder.

    Raises:
        InputError: their record cannot be read.
    """
    return [Path(each["run"]) for each in recorded(name) if each["status"] != "finished"]
