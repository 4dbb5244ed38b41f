"""A team's SkyPilot server on a real cluster: the client has neither a kubeconfig nor SkyPilot's programs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster.launches import document
from tests.cluster.sky_place import NEAR, PROGRAM, TWO, Place, place

pytestmark = [pytest.mark.cluster, pytest.mark.deep, pytest.mark.timeout(1500)]
__all__ = ["place"]
FEW = ("steps=20", "log.every=5", "checkpoint.every=20", "validation.every=20")
ENDLESS = ("steps=20000", "log.every=5", "checkpoint.every=1000", "validation.every=20000")


@pytest.fixture(scope="module")
def client(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Another user's home, which only knows the address of the server in `place`'s home."""
    start = [sys.executable, "-c", "from sky.client import sdk; sdk.api_start()"]
    subprocess.run(start, env=place.environment, check=True, capture_output=True, start_new_session=True)
    home = tmp_path_factory.mktemp("client")
    for name in ("store", "tmp"):
        (home / name).mkdir()
    shutil.copy(place.folder / f"{NEAR}.json", home)
    env = {
        "HOME": str(home),
        "TMPDIR": str(home / "tmp"),
        "KUBECONFIG": "",
        "PATH": str(Path(PROGRAM).parent),
        "SKYPILOT_API_SERVER_LOCAL_PORT": "1",
        "SKYPILOT_API_SERVER_ENDPOINT": f"http://127.0.0.1:{place.env['SKYPILOT_API_SERVER_LOCAL_PORT']}",
        "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
    }
    assert all(shutil.which(tool, path=env["PATH"]) is None for tool in ("kubectl", "socat", "nc"))
    return replace(place, folder=home, env=env)


def sky(client: Place, *arguments: str) -> str:
    """A command of SkyPilot's own client."""
    program = str(Path(PROGRAM).with_name("sky"))
    done = subprocess.run(
        [program, *arguments],
        env=client.environment,
        cwd=client.folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_client_checks_prints_and_launches_through_the_server(client: Place) -> None:
    checked = client.call("sky", "check", "--stack", f"{NEAR}.json", "--quick", "--json")
    assert checked.returncode == 0, checked.stderr
    assert [each["ready"] for each in json.loads(checked.stdout)] == [True]
    printed = client.call(*client.arguments("shown", NEAR), "--print")
    assert f"infra: k8s/{NEAR}" in printed.stdout, printed.stderr

    done = client.launch("far-away", NEAR, more=(*TWO, *FEW))
    assert done.returncode == 0, done.stderr
    assert document(done.stdout)["step"] == 20
    client.gone()
    assert not (client.folder / ".kube").exists()


def test_a_stop_through_the_server_saves_the_run(client: Place) -> None:
    with client.launched("stopped", NEAR, more=(*TWO, *ENDLESS)) as launch:
        launch.reach(10)
        assert "tf-stopped" in sky(client, "status")
        assert '"kind": "step"' in sky(client, "logs", "tf-stopped", "1", "--no-follow")
        assert launch.interrupt() == 130, launch.output
    assert "which is saved" in launch.output
    client.gone()


def test_a_managed_job_is_listed_by_the_server(client: Place) -> None:
    done = client.launch("managed", NEAR, more=(*TWO, *FEW, "--managed"))
    assert done.returncode == 0, done.stderr
    assert "tf-managed" in sky(client, "jobs", "queue", "--all")
    client.gone()
