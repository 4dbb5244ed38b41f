"""`python -m tests.fuzz.record FILE...` writes resources.jsonl: one resource of each type, from files that
`trainfleet rehearse STACK --until preview --resources FILE` wrote.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

RESOURCES = Path(__file__).with_name("resources.jsonl")
PACKAGES = ("aws", "azure-native", "gcp", "kubernetes")
LARGEST = 2_000
"""Characters of a resource's inputs. Larger ones add time, and no type that is read differently."""


def main(files: list[str]) -> None:
    """Keep of each type the resource with the most inputs that is not too large."""
    kept: dict[str, dict[str, Any]] = {}
    for file in files:
        for line in Path(file).read_text(encoding="utf-8").splitlines():
            found = json.loads(line)
            row = {"type": found["type"], "inputs": found["inputs"]}
            known = kept.get(row["type"])
            size, least = len(json.dumps(row["inputs"])), len(json.dumps(known["inputs"])) if known else 0
            row["inputs"].pop("__defaults", None)
            if row["type"].split(":")[0] in PACKAGES and least < size <= LARGEST:
                kept[row["type"]] = row
    lines = [json.dumps(kept[name], sort_keys=True) + "\n" for name in sorted(kept)]
    RESOURCES.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
