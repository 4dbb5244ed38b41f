"""The commands that `ray up` runs in the project's own image: as user 1000, in a login shell as Ray starts it,
without a network, on every cloud.

Ray's docker command runner needs a Docker daemon. A chroot of the same files in namespaces of its own replaces
it; the commands are wrapped by Ray's own functions.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from ray.autoscaler._private.command_runner import _with_interactive
from ray.autoscaler._private.docker import with_docker_exec

from tests.training.launch.test_ray_up_cluster_yaml import document, run_spec
from trainfleet.local_cluster import images, rootfs
from trainfleet.training.launch.ray_up.cluster_yaml import FOLDER, PROVIDERS

pytestmark = [pytest.mark.cluster, pytest.mark.deep, pytest.mark.timeout(1800)]
START = """\
mount -t proc proc "$0/proc"; mount --rbind /dev "$0/dev"; ip link set lo up
exec chroot --userspec=1000:1000 "$0" env -i {environment} /bin/bash -c "$1"
"""


@dataclass(frozen=True)
class Container:
    """A stand-in for a container of the image."""

    root: Path

    def run(self, *commands: str) -> subprocess.CompletedProcess[str]:
        """Run commands one after the other, each as Ray does: `docker exec CONTAINER bash -c COMMAND`."""
        wrapped = []
        for command in commands:
            inside = command.replace("~/", f"{rootfs.HOME}/")  # DockerCommandRunner._docker_expand_user
            (executed,) = with_docker_exec([" ".join(_with_interactive(inside))], "trainfleet", "docker")
            prefix, _, own = executed.partition(" trainfleet ")
            assert prefix.split() == ["docker", "exec"]
            wrapped.append(own)
        environment = " ".join(f"{name}={value}" for name, value in images.ENVIRONMENT.items())
        namespaces = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child"]
        return subprocess.run(
            [*namespaces, "sh", "-c", START.format(environment=environment), self.root, " && ".join(wrapped)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Iterator[Container]:
    """The system and packages of `trainfleet cluster up`, with images/ray_up.lock, the project, and the files
    that Ray mounts.
    """
    images.prepare(print, image=True)
    layers = images.cached_layers()
    folder = tmp_path_factory.mktemp("image")
    for stage in rootfs.STAGES[:2]:
        subprocess.run(["tar", "-C", folder, "-xpf", layers[stage.key(root / "images")]], check=True)
    packages = folder / rootfs.SITE_PACKAGES.lstrip("/")
    install = [rootfs.find_uv(), "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
    install += ["--python-version", "3.11", "--target", str(packages)]
    lock = ["-r", str(root / "images" / "ray_up.lock")]
    subprocess.run([*install, *lock], check=True, env=os.environ | rootfs.package_index())
    shutil.copytree(root / "trainfleet", packages / "trainfleet")
    files = folder / "home" / "ray" / FOLDER
    files.mkdir(parents=True)
    (files / "token").write_text("0" * 64)
    subprocess.run(["chown", "-R", "1000:1000", folder / "home" / "ray"], check=True)
    yield Container(folder)
    shutil.rmtree(folder)


@pytest.mark.parametrize("cloud", PROVIDERS)
def test_every_set_up_command_succeeds_in_the_image(cloud: str, container: Container) -> None:
    cluster = document(run_spec(cloud, image="my/trainfleet:1"))
    head = [*cluster["setup_commands"], *cluster["head_setup_commands"]]
    done = container.run(*head, "id -u", "ls /sys/class/net 2>/dev/null; ip -brief link show up")
    assert done.returncode == 0, done.stderr
    assert "\n1000\n" in done.stdout
    assert [line.split()[0] for line in done.stdout.splitlines() if "LOOPBACK" in line] == ["lo"]
    assert not [line for line in done.stdout.splitlines() if "UP" in line and not line.startswith("lo")]


def test_ray_starts_with_the_commands_of_the_file(container: Container) -> None:
    cluster = document(run_spec("aws", image="my/trainfleet:1"))
    stop, start, _ = cluster["head_start_ray_commands"]
    start = start.replace("--autoscaling-config=~/ray_bootstrap_config.yaml", "--node-ip-address=127.0.0.1")
    status = f"{start.partition('ray start')[0]} ray status --address=127.0.0.1:6379"
    done = container.run(*cluster["setup_commands"], stop, start, status, stop)
    assert done.returncode == 0, done.stderr
    assert "Active:" in done.stdout


def test_an_image_without_the_packages_of_the_cloud_is_reported(container: Container) -> None:
    boto3 = container.root / rootfs.SITE_PACKAGES.lstrip("/") / "boto3"
    hidden = boto3.rename(boto3.with_name("hidden"))
    try:
        done = container.run(*document(run_spec("aws", image="my/trainfleet:1"))["head_setup_commands"])
    finally:
        hidden.rename(boto3)
    assert done.returncode == 1
    assert "the image lacks what Ray needs on aws: install images/ray_up.lock" in done.stderr
