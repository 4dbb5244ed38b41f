"""examples/kind.yaml, as kind itself reads it. No container starts: `docker` is a script that refuses to."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.cluster.test_node_settings import cluster
from trainfleet.local_cluster import servers
from trainfleet.local_cluster.nodes import labels_of
from trainfleet.local_cluster.state import State
from trainfleet.toolchain import find_go, run_go

ROOT = Path(__file__).resolve().parent.parent.parent
FILE = ROOT / "examples" / "kind.yaml"
# kind starts its nodes in parallel and stops at the first failure, so `run` fails only once all three are requested.
DOCKER = """#!/bin/sh
echo "$@" >> "$CALLS"
[ "$1" = info ] && echo '{}'
[ "$1" = run ] || exit 0
for _ in $(seq 100); do
  [ "$(grep -c '^run ' "$CALLS")" -lt 3 ] || exit 1
  sleep 0.1
done
exit 1
"""


@pytest.fixture(scope="module")
def kind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """kind, built from the pins next to this file."""
    target = tmp_path_factory.mktemp("kind") / "kind"
    go = find_go(lambda _: None)
    command = [str(go), "build", "-o", str(target), "sigs.k8s.io/kind"]
    run_go(command, Path(__file__).with_name("kind"), lambda _: None, "kind")
    return target


def created(kind: Path, folder: Path, text: str) -> tuple[str, list[str]]:
    """What kind prints for a configuration, and the calls of `docker run`."""
    (folder / "docker").write_text(DOCKER)
    (folder / "docker").chmod(0o755)
    (folder / "kind.yaml").write_text(text)
    environment = os.environ | {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "CALLS": str(folder / "calls"),
        "KIND_EXPERIMENTAL_PROVIDER": "docker",
        "HOME": str(folder),
    }
    done = subprocess.run(
        [str(kind), "create", "cluster", "--config", str(folder / "kind.yaml")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode != 0
    calls = (folder / "calls").read_text().splitlines() if (folder / "calls").exists() else []
    return done.stderr, [call for call in calls if call.startswith("run ")]


@pytest.mark.deep
def test_kind_accepts_the_file_and_starts_its_three_nodes(kind: Path, tmp_path: Path) -> None:
    printed, calls = created(kind, tmp_path, FILE.read_text())
    assert 'Creating cluster "trainfleet"' in printed
    assert {call.split()[2] for call in calls} == {
        "trainfleet-control-plane",
        "trainfleet-worker",
        "trainfleet-worker2",
    }


@pytest.mark.deep
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [("labels:", "label:", "field label not found"), ("role: worker", "role: any", "not a valid node role")],
)
def test_kind_refuses_a_file_with_a_mistake(
    kind: Path, tmp_path: Path, old: str, new: str, message: str
) -> None:
    printed, calls = created(kind, tmp_path, FILE.read_text().replace(old, new))
    assert message in printed
    assert calls == []


def test_kinds_nodes_have_the_labels_and_times_of_the_built_in_cluster() -> None:
    document = yaml.safe_load(FILE.read_text())
    it: State = cluster(3)
    assert [node["labels"] for node in document["nodes"]] == [labels_of(node) for node in it.nodes]
    patches = [yaml.safe_load(text) for text in document["kubeadmConfigPatches"]]
    settings = next(patch for patch in patches if patch["kind"] == "ClusterConfiguration")
    flags = {
        flag.partition("=")[::2]
        for server in (
            servers.control_plane(it)["kube-apiserver"],
            servers.clients(it)["kube-controller-manager"],
        )
        for flag in server.command
    }
    arguments = settings["apiServer"]["extraArgs"] | settings["controllerManager"]["extraArgs"]
    assert len(arguments) == 3
    assert {(f"--{name}", value) for name, value in arguments.items()} <= flags
