"""The driver's first step in a pod: take the recipe from the environment and train it, as `python -m
trainfleet.training.run FILE` does anywhere.

Started by Ray's job server on the head. Easy to get wrong: the folder must be the driver's own, for a
long-lived head has many.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from trainfleet.training.launch.kuberay.manifest import DOCUMENT
from trainfleet.training.run import main as run


def main() -> int:
    """Train; the exit code."""
    with tempfile.TemporaryDirectory(prefix="trainfleet-") as folder:
        file = Path(folder) / "recipe.yaml"
        file.write_text(os.environ.pop(DOCUMENT), encoding="utf-8")
        return run([str(file)])


if __name__ == "__main__":
    sys.exit(main())
