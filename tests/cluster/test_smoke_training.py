"""The smoke training of the generated workflows, by its own command, on a real cluster with KubeRay."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.launches import SMALL, Place, place
from trainfleet.infra.outputs.contract import partly_known
from trainfleet.local_cluster.images import LOCAL
from trainfleet.training.launch.remote.ray_job import RAY_VERSION

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]
__all__ = ["place"]
COMMAND = re.compile(r"timeout .* trainfleet launch .*")


def smoke_training(folder: Path, ci: str, file: str) -> str:
    """Create a repository; the command of its pipeline."""
    answers = ("--cloud", "aws", "--name", "acme", "--owner", "ml@example.com", "--ci", ci)
    subprocess.run(
        [sys.executable, "-m", "trainfleet", "init", folder, *answers], check=True, capture_output=True
    )
    (command,) = COMMAND.findall((folder / file).read_text())
    return str(command)


def run(place: Place, folder: Path, command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run it as a job does, with workers that fit into the node of the tests."""
    tools = Path(sys.executable).parent
    return subprocess.run(
        ["bash", "-eo", "pipefail", "-c", f"{command} {' '.join(SMALL)}"],
        cwd=folder,
        env=place.env | {"PATH": f"{tools}:{place.env['PATH']}"} | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )


def contract(place: Place, image: str) -> str:
    """Write the outputs of a platform on this cluster; the file."""
    found = partly_known(
        "acme-dev",
        "local",
        kube_context=place.cluster.state.context,
        namespace=place.namespace,
        image=image,
        ray_version=RAY_VERSION,
        bucket_url=f"{place.store.url}/runs",
        storage_secret="s3-keys",
    )
    file = place.folder / "contract.json"
    file.write_text(found.model_dump_json())
    return str(file)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("ci", "file", "url"),
    [("github", ".github/workflows/apply-stack.yml", "URL"), ("gitlab", ".gitlab/apply.yml", "url")],
)
def test_the_smoke_training_of_an_apply_runs_on_the_cluster(
    ci: str, file: str, url: str, place: Place
) -> None:
    folder = place.folder / ci
    command = smoke_training(folder, ci, file)
    ids = {"GITHUB_RUN_ID": "7", "GITHUB_RUN_ATTEMPT": "1", "CI_JOB_ID": "7"}
    done = run(place, folder, command, **ids, **{url: contract(place, LOCAL)})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "finished 20 steps" in done.stdout + done.stderr
    place.clean()


@pytest.mark.deep  # the launch waits a minute for the registry
def test_a_platform_whose_image_was_not_pushed_fails_the_smoke_training(place: Place) -> None:
    folder = place.folder / "no-image"
    command = smoke_training(folder, "github", ".github/workflows/apply-stack.yml")
    ids = {"GITHUB_RUN_ID": "8", "GITHUB_RUN_ATTEMPT": "1"}
    done = run(place, folder, command, **ids, URL=contract(place, "registry.invalid/nothing:1"))
    assert done.returncode == 2, done.stdout + done.stderr
    assert "the run's pods cannot start" in done.stderr
    place.clean()
