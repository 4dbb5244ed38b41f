"""What `--on ray-up` runs in the container of the training image, and what that image needs for it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ray.autoscaler.sdk import get_docker_host_mount_location

from tests.training.launch.test_ray_up_cluster_yaml import STORAGE, document, run_spec
from trainfleet.training.launch.ray_up.checks import MODULES
from trainfleet.training.launch.ray_up.cluster_yaml import FOLDER, PROVIDERS


def test_the_images_user_may_read_the_files_on_machines_whose_user_has_another_number(tmp_path: Path) -> None:
    """The command runs on the machine after Ray has copied the files, and before it starts the container."""
    (command,) = document(run_spec("gcp", image="ghcr.io/my/t:1"))["initialization_commands"]
    (tmp_path / "id").write_text("#!/bin/sh\necho $USER_ID\n")
    (tmp_path / "setfacl").write_text(f'#!/bin/sh\necho "$*" > {tmp_path}/asked\n')
    for name in ("id", "setfacl"):
        (tmp_path / name).chmod(0o755)
    for number, asked in (("1000", False), ("1001", True)):
        env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "USER_ID": number}
        assert subprocess.run(["bash", "-c", command], env=env, check=False).returncode == 0
        assert (tmp_path / "asked").exists() is asked
    folder = get_docker_host_mount_location(run_spec("gcp").name)
    assert (
        f"-m u:1000:r {folder}/~/{FOLDER}/recipe.yaml {folder}/~/{FOLDER}/token"
        in (tmp_path / "asked").read_text()
    )


@pytest.mark.parametrize("cloud", [*STORAGE])
def test_no_command_in_the_container_installs_anything(cloud: str) -> None:
    cluster = document(run_spec(cloud, image="my/trainfleet:1"))
    inside = [command for key, value in cluster.items() if key.endswith("_commands") for command in value]
    inside = [each for each in inside if each not in cluster["initialization_commands"]]
    assert len(inside) >= 6
    assert not [each for each in inside if re.search(r"\b(pip|sudo|apt|apt-get|curl|wget|uv)\b", each)]


@pytest.mark.deep
@pytest.mark.parametrize("cloud", [each for each, modules in MODULES.items() if modules])
def test_the_extra_has_what_rays_launcher_imports(cloud: str) -> None:
    listed = set(MODULES[cloud])
    program = f"import sys, {PROVIDERS[cloud]}; print(sorted({listed!r} - sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stderr
