"""The hook with which the local GitLab opens a merge request for a push that asks for one."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

file = Path(sys.argv[1])
options = [
    os.environ[f"GIT_PUSH_OPTION_{each}"] for each in range(int(os.environ.get("GIT_PUSH_OPTION_COUNT", "0")))
]
branch = sys.stdin.read().split()[-1].removeprefix("refs/heads/")
document = json.loads(file.read_text())
values = dict(each.partition("=")[::2] for each in options)
pull = next((each for each in document["pulls"] if each["branch"] == branch), None)
if pull is None and "merge_request.create" in values:
    pull = {
        "number": len(document["pulls"]) + 1,
        "branch": branch,
        "target": values["merge_request.target"],
    }
    document["pulls"].append(pull)
if pull is not None:
    pull["description"] = values.get("merge_request.description", "").replace("\\n", "\n")
file.write_text(json.dumps(document, indent=1))
