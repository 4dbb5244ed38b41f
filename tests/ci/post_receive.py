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
if "merge_request.create" in options and branch not in [each["branch"] for each in document["pulls"]]:
    (target,) = [each.partition("=")[2] for each in options if each.startswith("merge_request.target=")]
    document["pulls"].append({"number": len(document["pulls"]) + 1, "branch": branch, "target": target})
    file.write_text(json.dumps(document, indent=1))
