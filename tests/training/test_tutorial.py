"""The commands of docs/tutorial.md run in order as written, and print the lines that the page shows."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")


def shown() -> Iterator[tuple[str, list[str]]]:
    """Each command of the page, and the output lines below it."""
    for block in re.findall(r"```console\n(.*?)```", TEXT, flags=re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *lines = part.rstrip("\n").split("\n")
            while command.endswith("\\"):
                command += "\n" + lines.pop(0)
            yield command, lines


def test_the_page_shows_each_command_of_the_tutorial() -> None:
    commands = [command for command, _ in shown()]
    places = [
        next(number for number, command in enumerate(commands) if command.startswith(f"trainfleet {name} "))
        for name in ("train", "tune", "evaluate", "predict", "serve", "publish", "report")
    ]
    assert places == sorted(places)
    assert commands[places[0]] == "trainfleet train recipes/lm-small.yaml strategy=fsdp"


@pytest.mark.deep
@pytest.mark.launch
@pytest.mark.timeout(3600)
def test_the_commands_run_in_order(tmp_path: Path) -> None:
    """In a folder that holds only the recipes, in one shell."""
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    script = "\n".join(["set -m -e -o pipefail", *(command for command, _ in shown())])
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "NO_COLOR": "1",
        "COLUMNS": "160",
    }
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=3500,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "Traceback" not in done.stdout
    output = "\n".join(
        " ".join(re.sub(r"\d+(\.\d+)?", "0", line).split()) for line in done.stdout.splitlines()
    )
    words = [
        "finished 0 steps in",
        "nothing to do",
        "below a bigram model's",
        "published step",
        "runs/lm-small/report.html",
        "serving step",
        '{"status":"ok"',
        '{"predictions":[{"text":',
    ]
    assert [word for word in words if word not in output] == []
    provenance = json.loads((tmp_path / "published" / "provenance.json").read_text())
    assert provenance["recipe"]["strategy"] == "fsdp"
    assert all(gate["passed"] for gate in provenance["gates"])
    assert (tmp_path / "trials.html").is_file()
