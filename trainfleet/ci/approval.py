"""Whether a destructive pull request was approved: by its label and a reviewer of its last commit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainfleet.errors import InputError, Problem, TrainfleetError

LABEL = "destructive-change"
FIELDS = "number,author,labels,reviews,headRefOid"
"""What `gh pr view --json` has to print."""
DECIDING = ("APPROVED", "CHANGES_REQUESTED", "DISMISSED")
TRUSTED = ("OWNER", "MEMBER", "COLLABORATOR")
"""Anybody may review a public repository; these belong to it (GitHub's `authorAssociation`)."""


def read_pull_request(file: Path) -> dict[str, Any]:
    """Read the output of `gh pr view NUMBER --json FIELDS`.

    Raises:
        InputError: the file cannot be read, or lacks a field.
    """
    fix = f"gh pr view NUMBER --json {FIELDS} > {file.name}"
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            "cannot read the pull request", [Problem(str(file), error.strerror or "", fix)]
        ) from error
    except (ValueError, RecursionError) as error:
        raise InputError("cannot read the pull request", [Problem(str(file), "is not JSON", fix)]) from error
    missing = [name for name in FIELDS.split(",") if not isinstance(document, dict) or name not in document]
    if missing:
        raise InputError(
            "cannot read the pull request", [Problem(str(file), f"has no {', '.join(missing)}", fix)]
        )
    return dict(document)


def approvers(pull_request: Mapping[str, Any]) -> list[str]:
    """Return who approved the last commit: each reviewer's newest decision counts."""
    author, head = pull_request["author"]["login"], pull_request["headRefOid"]
    newest: dict[str, Mapping[str, Any]] = {}
    for review in pull_request["reviews"]:
        if review["state"] in DECIDING:
            newest[review["author"]["login"]] = review
    return [
        name
        for name, review in newest.items()
        if review["state"] == "APPROVED"
        and review["authorAssociation"] in TRUSTED
        and (review.get("commit") or {}).get("oid") == head
        and name != author
    ]


def check_approved(pull_request: Mapping[str, Any]) -> list[str]:
    """Return the approvers of a destructive pull request.

    Raises:
        TrainfleetError: it lacks the label or an approval of its last commit; names both at once.
    """
    where = f"pull request #{pull_request['number']}"
    problems = []
    if LABEL not in [label["name"] for label in pull_request["labels"]]:
        problems.append(Problem(where, f"has no label `{LABEL}`", "read the review, then add the label"))
    found = approvers(pull_request)
    if not found:
        problems.append(
            Problem(
                where,
                f"nobody but its author approved its last commit ({pull_request['headRefOid'][:9]})",
                "ask for a review, and again after each push",
            )
        )
    if problems:
        raise TrainfleetError("this destructive change is not approved", problems)
    return found
