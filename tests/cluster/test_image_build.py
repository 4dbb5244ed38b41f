"""images/Dockerfile, built with buildah: the target `cpu`, and the targets of fabrics on a stand-in of `cuda`.

The vendors' files cannot be downloaded here. The tests give the build files of their own with the checksums or
key that belong to them, and show that the build ends with other ones.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.cluster.image_builds import Builder
from trainfleet.infra.azure import node_pools
from trainfleet.infra.catalog.machines import machines_of
from trainfleet.infra.clouds import Cloud
from trainfleet.local_cluster import rootfs
from trainfleet.local_cluster.node import ISOLATED
from trainfleet.training.launch.ray_up.cluster_yaml import PROVIDERS

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(3000)]
FREE_GB = {"cpu": 20, "fabrics": 3}
TOPOLOGIES = {"NDV4_SHA256": "ndv4-topo.xml", "NDV5_SHA256": "ndv5-topo.xml"}
LOAD = "use DynaLoader; DynaLoader::dl_load_file($_) || die DynaLoader::dl_error() for @ARGV"
INSTALLER = """\
#!/bin/sh
set -eu
echo "$*" > /served/installed
mkdir -p /opt/amazon/efa/lib /opt/amazon/ofi-nccl/lib
cp /lib/*/libz.so.1 /opt/amazon/efa/lib/libfabric.so.1
cp /lib/*/libz.so.1 /opt/amazon/ofi-nccl/lib/libnccl-net.so
"""
SIGN = """\
key() { gpg --homedir "$1" --batch --with-colons --fingerprint | sed -n 's/^fpr:*\\([0-9A-F]*\\):$/\\1/p' | head -1; }
mkdir -m 700 keys
gpg --homedir keys --batch --quiet --passphrase '' --quick-generate-key test@localhost ed25519 sign never
gpg --homedir keys --batch --export > served/aws-efa-installer.key
gpg --homedir keys --batch --output "$1.sig" --detach-sign "$1"
key keys
"""
VERSIONS = """\
import importlib.metadata, json, sys
found = {each.name.lower().replace("_", "-").replace(".", "-"): each.version for each in importlib.metadata.distributions()}
print(json.dumps([sys.version.split()[0], found]))
"""
DISCOVERY = """\
from ray.autoscaler._private.gcp import config
from google.auth.credentials import AnonymousCredentials
for create in (config._create_crm, config._create_iam, config._create_compute):
    create(AnonymousCredentials())
"""
TRAINING = """\
import ray, torch, trainfleet.training
print(torch.equal(torch.eye(3) @ torch.ones(3, 3), torch.ones(3, 3)), torch.cuda.is_available())
"""


def builder_in(folder: Path, checkout: Path, free_gb: int) -> Iterator[Builder]:
    """A builder with its base image; its storage is removed at the end."""
    free = shutil.disk_usage(folder).free / 1e9
    if free < free_gb:
        pytest.skip(
            f"{folder} has {free:.0f} GB free, the build needs {free_gb}: set --basetemp to another disk"
        )
    builder = Builder(folder, checkout)
    try:
        builder.make_base()
        yield builder
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def on_stand_in(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Iterator[Builder]:
    for builder in builder_in(tmp_path_factory.mktemp("fabrics"), root, FREE_GB["fabrics"]):
        builder.make_stand_in()
        yield builder


@pytest.fixture
def topologies(tmp_path: Path) -> dict[str, str]:
    """The checksums of two files below `served`, by the build arguments that take them."""
    served = tmp_path / "served"
    served.mkdir()
    for name in TOPOLOGIES.values():
        (served / name).write_text(f"<system>{name}</system>\n")
    return {
        argument: hashlib.sha256((served / name).read_bytes()).hexdigest()
        for argument, name in TOPOLOGIES.items()
    }


def arguments(values: dict[str, str]) -> list[str]:
    return [f"--build-arg={name}={value}" for name, value in values.items()]


def test_the_infiniband_image_has_loadable_libraries_and_the_topology_files(
    on_stand_in: Builder, topologies: dict[str, str], tmp_path: Path
) -> None:
    done = on_stand_in.build("infiniband", *arguments(topologies), served=tmp_path / "served")
    assert done.returncode == 0, done.stderr[-2000:]
    inside = on_stand_in.start("localhost/infiniband")
    assert on_stand_in.run(inside, "id", "-u").split() == ["1000"]
    on_stand_in.run(inside, "perl", "-e", LOAD, "libibverbs.so.1", "librdmacm.so.1", "libmlx5.so.1")
    fast = [machine for machine in machines_of(Cloud.AZURE) if machine.rdma == "infiniband"]
    for path in {node_pools.fabric_environment(machine)["NCCL_TOPO_FILE"] for machine in fast}:
        assert on_stand_in.run(inside, "cat", path) == f"<system>{Path(path).name}</system>\n"


@pytest.mark.parametrize("given", [(), ("NDV4_SHA256",), ("NDV5_SHA256",)], ids=["none", "ndv4", "ndv5"])
def test_a_topology_file_with_another_checksum_ends_the_build(
    given: tuple[str, ...], on_stand_in: Builder, topologies: dict[str, str], tmp_path: Path
) -> None:
    options = arguments({name: topologies[name] for name in given})
    done = on_stand_in.build("infiniband", *options, served=tmp_path / "served")
    assert done.returncode != 0
    assert 'building at STEP "RUN mkdir -p /opt/microsoft ' in done.stderr
    asked = (tmp_path / "served" / "asked").read_text().split()
    assert [url.rpartition("/")[2] for url in asked] == [*TOPOLOGIES.values()]
    assert all(url.startswith("https://raw.githubusercontent.com/Azure/azhpc-images/") for url in asked)


@pytest.fixture
def signing_key(tmp_path: Path, root: Path) -> str:
    """The fingerprint of the key that signed the installer below `served`."""
    (version,) = re.findall(r"^ARG EFA_INSTALLER=(\S+)$", (root / "images" / "Dockerfile").read_text(), re.M)
    source, served = tmp_path / "aws-efa-installer", tmp_path / "served"
    source.mkdir()
    served.mkdir()
    (source / "efa_installer.sh").write_text(INSTALLER)
    (source / "efa_installer.sh").chmod(0o755)
    archive = served / f"aws-efa-installer-{version}.tar.gz"
    subprocess.run(["tar", "-C", tmp_path, "-czf", archive, source.name], check=True)
    command = [*ISOLATED, "sh", "-euc", SIGN, "sh", str(archive.relative_to(tmp_path))]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_efa_image_has_the_libraries_of_a_signed_installer_on_the_loaders_path(
    on_stand_in: Builder, signing_key: str, tmp_path: Path
) -> None:
    done = on_stand_in.build("efa", f"--build-arg=EFA_KEY={signing_key}", served=tmp_path / "served")
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "served" / "installed").read_text().startswith("-y --skip-kmod ")
    inside = on_stand_in.start("localhost/efa")
    assert on_stand_in.run(inside, "id", "-u").split() == ["1000"]
    on_stand_in.run(inside, "perl", "-e", LOAD, "libfabric.so.1", "libnccl-net.so")
    assert on_stand_in.run(inside, "ls", "/tmp") == ""


def ends_before_the_installer(done: subprocess.CompletedProcess[str], served: Path) -> bool:
    """Whether the build downloaded the three files of the installer, and failed without running it."""
    assert done.returncode != 0
    assert 'building at STEP "RUN apt-get update ' in done.stderr
    asked = (served / "asked").read_text().split()
    assert [url.rpartition(".")[2] for url in asked] == ["key", "sig", "gz"]
    return not (served / "installed").exists()


def test_an_installer_that_another_key_signed_ends_the_build(
    on_stand_in: Builder, signing_key: str, tmp_path: Path
) -> None:
    done = on_stand_in.build("efa", served=tmp_path / "served")
    assert ends_before_the_installer(done, tmp_path / "served")


def test_an_installer_that_changed_after_it_was_signed_ends_the_build(
    on_stand_in: Builder, signing_key: str, tmp_path: Path
) -> None:
    (archive,) = (tmp_path / "served").glob("*.tar.gz")
    archive.write_bytes(archive.read_bytes() + b"\0")
    done = on_stand_in.build("efa", f"--build-arg=EFA_KEY={signing_key}", served=tmp_path / "served")
    assert ends_before_the_installer(done, tmp_path / "served")


def locked(text: str, python: str) -> dict[str, str]:
    """The versions that a lock installs for this version of Python, by package."""
    rows = [Requirement(row) for row in re.findall(r"^(\S+==.*?)(?: \\)?$", text, re.M)]
    environment = {"python_full_version": python, "python_version": python.rpartition(".")[0]}
    return {
        row.name: str(row.specifier).removeprefix("==")
        for row in rows
        if row.marker is None or row.marker.evaluate(environment)
    }


@pytest.mark.deep
def test_the_cpu_image_has_the_locked_packages_and_trains(
    tmp_path_factory: pytest.TempPathFactory, root: Path
) -> None:
    for builder in builder_in(tmp_path_factory.mktemp("cpu"), root, FREE_GB["cpu"]):
        done = builder.build("cpu", limit=2700)
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        inside = builder.start("cpu")
        assert builder.run(inside, "id", "-u").split() == ["1000"]
        assert builder.run(inside, "python", "-c", TRAINING).split() == ["True", "False"]
        assert builder.run(inside, "trainfleet", "--version").strip()
        for module in PROVIDERS.values():
            builder.run(inside, "python", "-c", f"import {module}")
        builder.run(inside, "python", "-c", DISCOVERY)
        images = root / "images"
        python, found = json.loads(builder.run(inside, "python", "-c", VERSIONS))
        # `trainfleet cluster up` installs this part of the lock.
        expected = locked(rootfs.split_lock((images / "requirements.lock").read_text())[1], python)
        expected |= locked((images / "ray_up.lock").read_text(), python)
        assert found.pop("trainfleet")
        assert found == expected
        runtime = f"{rootfs.RUNTIME}/bin/python"
        builder.run(inside, runtime, "-c", "import sky")
        python, found = json.loads(builder.run(inside, runtime, "-c", VERSIONS))
        assert found == locked((images / "skypilot.lock").read_text(), python)
        assert builder.run(inside, "sudo", "-n", "id", "-u").split() == ["0"]  # SkyPilot sets up its pods
