"""The `gh` of the harness: the commands that the generated workflows use, on the data of a Forge (FORGE).

The token (GH_TOKEN) names the permissions of the job, and a command that needs another one fails.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

LONGEST_BODY = 65_536
"""GitHub's limit of comments, issues and pull requests."""
QUERIES = {
    ".[0].number": lambda found: found[0]["number"] if found else None,
    ".[0].number // empty": lambda found: found[0]["number"] if found else "",
}


def need(permission: str, level: str) -> None:
    """Refuse a command that the token does not allow."""
    granted = dict(
        each.split("=") for each in os.environ["GH_TOKEN"].removeprefix("token:").split(",") if each
    )
    if granted.get(permission) not in (("write",) if level == "write" else ("read", "write")):
        sys.exit(f"HTTP 403: Resource not accessible by integration (needs {permission}: {level})")


def printed(found: Any, query: str | None) -> None:
    """Print JSON, or what a query selects."""
    print(json.dumps(found) if query is None else QUERIES[query](found))  # noqa: T201 - the command's output


def main() -> None:
    """Run one command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("words", nargs="+")
    for option in (
        "body",
        "env",
        "body-file",
        "comment",
        "label",
        "title",
        "head",
        "base",
        "state",
        "json",
        "jq",
        "repo",
    ):
        parser.add_argument(f"--{option}")
    for option in ("edit-last", "create-if-none", "force"):
        parser.add_argument(f"--{option}", action="store_true")
    given = parser.parse_args()
    file = Path(os.environ["FORGE"])
    data = json.loads(file.read_text())
    if given.words[:2] == ["variable", "set"]:
        data.setdefault("variables", {}).setdefault(given.env or "", {})[given.words[2]] = given.body
    body = Path(given.body_file).read_text() if given.body_file else ""
    if len(body) > LONGEST_BODY:
        sys.exit(f"HTTP 422: Body is too long (maximum is {LONGEST_BODY} characters)")
    if given.words[0] in ("issue", "label"):
        issues(given, data, body)
    elif given.words[:2] != ["variable", "set"]:
        pull_requests(given, data, body)
    file.write_text(json.dumps(data, indent=1))


def pull_requests(given: argparse.Namespace, data: dict[str, Any], body: str) -> None:
    """`gh pr`, and `gh api` for the pull requests of a commit."""
    match given.words:
        case ["pr", "comment", number]:
            need("pull-requests", "write")
            comments = data["pulls"][int(number) - 1]["comments"]
            comments[-1:] = [body] if given.edit_last and comments else [*comments[-1:], body]
        case ["pr", "view", number]:
            need("pull-requests", "read")
            pull = data["pulls"][int(number) - 1]
            printed({name: pull[name] for name in given.json.split(",")}, given.jq)
        case ["pr", "list"]:
            need("pull-requests", "read")
            found = [
                pull
                for pull in data["pulls"]
                if pull["branch"] == given.head and pull["state"] == given.state
            ]
            printed(found, given.jq)
        case ["pr", "create"]:
            need("pull-requests", "write")
            number = len(data["pulls"]) + 1
            data["pulls"].append(
                {"number": number, "branch": given.head, "title": given.title, "body": body, "state": "open"}
            )
        case ["pr", "edit", number]:
            need("pull-requests", "write")
            data["pulls"][int(number) - 1]["body"] = body
        case ["api", path] if path.startswith("repos/") and path.endswith("/pulls"):
            need("pull-requests", "read")
            commit = path.split("/")[-2]
            printed(
                [pull for pull in data["pulls"] if (pull["mergeCommit"] or {}).get("oid") == commit], given.jq
            )
        case _:
            refuse(given)


def issues(given: argparse.Namespace, data: dict[str, Any], body: str) -> None:
    """`gh issue` and `gh label`."""
    match given.words:
        case ["issue", "list"]:
            need("issues", "read")
            found = [
                each
                for each in data["issues"]
                if given.label in each["labels"] and each["state"] == given.state
            ]
            printed(found, given.jq)
        case ["issue", "create"]:
            need("issues", "write")
            if given.label not in data["labels"]:
                sys.exit(f"could not add label: '{given.label}' not found")
            number = len(data["issues"]) + 1
            data["issues"].append(
                {
                    "number": number,
                    "title": given.title,
                    "labels": [given.label],
                    "body": body,
                    "state": "open",
                }
            )
        case ["issue", "edit", number]:
            need("issues", "write")
            data["issues"][int(number) - 1]["body"] = body
        case ["issue", "close", number]:
            need("issues", "write")
            data["issues"][int(number) - 1] |= {"state": "closed", "comment": given.comment}
        case ["label", "create", name]:
            need("issues", "write")
            data["labels"] = sorted({*data["labels"], name})
        case _:
            refuse(given)


def refuse(given: argparse.Namespace) -> NoReturn:
    """End with the words of a command that the harness does not have."""
    sys.exit(f"the harness has no `gh {' '.join(given.words)}`")


if __name__ == "__main__":
    main()
