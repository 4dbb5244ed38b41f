"""The driver of a Ray job: takes the recipe from the environment and trains it."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from trainfleet.training.launch.remote.ray_job import DOCUMENT
from trainfleet.training.run import main as run


def main() -> int:
    """Train; the exit code."""
    # A folder of the driver's own: the head of a long-lived cluster runs several drivers.
    with tempfile.TemporaryDirectory(prefix="trainfleet-") as folder:
        file = Path(folder) / "recipe.yaml"
        file.write_text(os.environ.pop(DOCUMENT), encoding="utf-8")
        return run([str(file)])


if __name__ == "__main__":
    sys.exit(main())
