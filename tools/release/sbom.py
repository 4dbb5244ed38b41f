"""Writes the bill of materials of the locked environment, with a tool of its own environment."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

LOCK = Path(__file__).with_name("sbom.lock")
"""`cyclonedx-bom` and what it needs, with hashes. It is not in the project's lock, because its packages would
become part of the training image.
"""


def write_sbom(file: Path, version: str) -> list[dict[str, Any]]:
    """Write a CycloneDX document of this environment's packages; returns them, without Trainfleet's own.

    Raises:
        subprocess.CalledProcessError: the tool could not be installed, or failed.
    """
    uv = Path(sys.executable).with_name("uv")
    with tempfile.TemporaryDirectory(prefix="trainfleet-sbom-") as folder:
        python = Path(folder, "bin", "python")
        commands: tuple[list[str | Path], ...] = (
            [uv, "venv", "--quiet", folder],
            [uv, "pip", "install", "--quiet", "--python", python, "--require-hashes", "-r", LOCK],
            [
                *(Path(folder, "bin", "cyclonedx-py"), "environment", "--output-reproducible"),
                *("--of", "JSON", "-o", file, sys.executable),
            ],
        )
        for command in commands:
            subprocess.run(command, check=True, capture_output=True, text=True)
    document = json.loads(file.read_text(encoding="utf-8"))
    own = {"trainfleet", "trainfleet-api-facts"}
    document["components"] = [each for each in document["components"] if each["name"] not in own]
    document["dependencies"] = [
        each for each in document.get("dependencies", ()) if each["ref"].partition("==")[0] not in own
    ]
    document["metadata"]["component"] = {
        "type": "application",
        "bom-ref": f"trainfleet=={version}",
        "name": "trainfleet",
        "version": version,
        "purl": f"pkg:pypi/trainfleet@{version}",
    }
    file.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    components: list[dict[str, Any]] = document["components"]
    return components
