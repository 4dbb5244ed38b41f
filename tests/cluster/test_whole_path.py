"""The whole path as docs/local-cluster.md shows it: a cluster, a store, the stack `local`, and four launches with
nothing but the stack's outputs. Each has the losses of a local run, and nothing is left behind.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tools.pages import ROOT, blocks
from trainfleet.local_cluster.images import LOCAL

pytestmark = [pytest.mark.cluster, pytest.mark.deep, pytest.mark.timeout(2400)]
NAME = "tests/cluster/test_whole_path.py"
RUNS = {"lm-small": "ddp", "lm-small-fsdp": "fsdp", "lm-small-sky": "ddp", "lm-small-sky-fsdp": "fsdp"}
LINK = Path("/sys/class/net/tf-local")
SITE = """\
import sysconfig

own = sysconfig.get_paths
sysconfig.get_paths = lambda *given, **named: {**own(*given, **named), "stdlib": LIBRARY}
"""
"""The recipe trains on the standard library of its Python: here on that of the image."""


class Shell:
    """A new user's shell in a clone of the repository, with a home folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.clone, self.settings = folder / "trainfleet", ""
        subprocess.run(["git", "clone", "--quiet", "--local", ROOT, self.clone], check=True)
        self.environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "NO_COLOR": "1",
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")),
            "HOME": str(folder),
        }
        self.temporary = folder / "tmp"
        self.temporary.mkdir()

    def run(self, command: str, **environment: str) -> str:
        """Run a command; its output. Those that change the shell are repeated before each later one."""
        if command.startswith(("source ", "export ")):
            self.settings += f"{command}\n"
        if " sky" in f" {command}":  # SkyPilot removes little of what it writes there
            environment["TMPDIR"] = str(self.temporary)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", self.settings + command],
            cwd=self.clone,
            env=self.environment | environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    if LINK.exists():
        pytest.skip("a cluster `local` runs on this machine: trainfleet cluster down")
    one = Shell(tmp_path)
    yield one
    one.settings = ""
    one.run("sky api stop || true")
    one.run("trainfleet cluster down")


def run_record(shell: Shell, run: str) -> dict[str, Any]:
    """The run.json of a launch."""
    found: dict[str, Any] = json.loads((shell.clone / "runs" / run / "run.json").read_text())
    return found


def losses_of(shell: Shell, run: str) -> list[Any]:
    """The losses of a launch, from its metrics."""
    rows = (shell.clone / "runs" / run / "metrics.jsonl").read_text().splitlines()
    return [(row["step"], round(row["loss"], 6)) for row in map(json.loads, rows) if row["kind"] == "train"]


def library_of_the_image(shell: Shell, folder: Path) -> Path:
    """The standard library in the image, copied from a pod."""
    archive = folder / "library.tar"
    space = "kubectl -n default"
    shell.run(f"{space} run library --image {LOCAL} --restart Never --command -- sleep 600")
    shell.run(f"{space} wait --for condition=Ready --timeout 120s pod/library")
    shell.run(f"{space} exec library -- tar -chf - -C /usr/lib python3.11 > {archive}")
    there = shell.run(f"{space} exec library -- find -L /usr/lib/python3.11 -name '*.py'").splitlines()
    shell.run(f"{space} delete pod library --now")
    (folder / "library").mkdir()
    subprocess.run(["tar", "-xf", archive, "-C", folder / "library"], check=True)
    assert len(list((folder / "library").rglob("*.py"))) == len(there), "the copy is not complete"
    return folder / "library" / "python3.11"


def test_four_launches_from_a_stacks_outputs_have_the_losses_of_local_runs(
    shell: Shell, tmp_path: Path
) -> None:
    text = (ROOT / "docs" / "local-cluster.md").read_text(encoding="utf-8")
    (block,) = [each for each in blocks(text) if (each.kind, each.value) == ("run", NAME)]
    commands = [line.partition("  #")[0].rstrip() for line in block.body.splitlines()]
    stop = commands.index("sky api stop")
    for command in commands[:stop]:
        shell.run(command)
    for run in RUNS:
        assert run_record(shell, run)["status"] == "finished", run
        assert (shell.clone / "runs" / run / "report.html").is_file(), run
    left = shell.run("kubectl -n training get pods,rayjobs,rayclusters,services -o name").split()
    assert left == []

    (tmp_path / "site").mkdir()
    library = library_of_the_image(shell, tmp_path)
    (tmp_path / "site" / "sitecustomize.py").write_text(f"LIBRARY = {str(library)!r}\n{SITE}")
    for command in commands[stop:]:
        shell.run(command)
    shell.settings = ""
    for strategy in ("ddp", "fsdp"):
        command = f"trainfleet launch lm-small --on local --run here-{strategy} strategy={strategy}"
        shell.run(command, PYTHONPATH=str(tmp_path / "site"))
        here = losses_of(shell, f"here-{strategy}")
        assert len(here) >= 20
        for run in (name for name, kind in RUNS.items() if kind == strategy):
            assert losses_of(shell, run) == here, run
    assert not LINK.exists()
