"""The image of the Dockerfile and of `trainfleet cluster up` have the same versions from the same files."""

from __future__ import annotations

import importlib
import inspect
import re
import shutil
import subprocess
import sys
import tarfile
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest
from ray.autoscaler._private.gcp import config as gcp_config

from tools import images as lock
from trainfleet.images.dockerfile import LOCKS
from trainfleet.infra.azure import node_pools
from trainfleet.infra.catalog.machines import machines_of
from trainfleet.infra.clouds import Cloud
from trainfleet.infra.gcp import layout
from trainfleet.local_cluster import images, rootfs
from trainfleet.local_cluster.lock_file import blocks
from trainfleet.training.runtime import process_group


@pytest.fixture(scope="module")
def dockerfile(root: Path) -> str:
    return (root / "images" / "Dockerfile").read_text()


def test_the_image_locks_are_current(root: Path) -> None:
    expected = lock.render_locks(
        (root / "requirements.lock").read_text(), (root / "pyproject.toml").read_text()
    )
    assert set(expected) == set(LOCKS)
    for name, text in expected.items():
        assert (root / "images" / name).read_text() == text, "run `python -m tools.images`"


def test_the_image_lock_keeps_all_versions_of_a_package(root: Path) -> None:
    rows = re.findall(r"^\S+==.*$", (root / "images" / "requirements.lock").read_text(), re.M)
    whole = (root / "requirements.lock").read_text()
    names = {row.partition("==")[0] for row in rows}
    assert sorted(rows) == sorted(
        row for row in re.findall(r"^\S+==.*$", whole, re.M) if row.partition("==")[0] in names
    )


def test_the_image_lock_has_the_training_packages_and_no_cloud_sdk(root: Path) -> None:
    names = blocks((root / "images" / "requirements.lock").read_text()).keys()
    assert {"torch", "ray", "torchmetrics", "transformers", "lightning-fabric", "pydantic", "typer"} <= names
    assert not [name for name in names if name.startswith(("pulumi", "pytest", "ruff", "skypilot"))]


def test_every_locked_package_has_a_hash(root: Path) -> None:
    for file in (*LOCKS, "skypilot.lock"):
        for name, block in blocks((root / "images" / file).read_text()).items():
            assert "--hash=sha256:" in block, f"{file}: {name}"


def test_the_skypilot_runtime_has_the_version_of_the_launcher(root: Path) -> None:
    def version(text: str) -> str:
        # A missing pin fails here.
        return re.search(r"^skypilot(?:\[.*?\])?==([\w.]+)", text, re.M)[1]  # type: ignore[index]

    assert version((root / "images" / "skypilot.lock").read_text()) == version(
        (root / "requirements.lock").read_text()
    )


def test_the_head_of_ray_up_finds_its_autoscalers_packages(root: Path, dockerfile: str) -> None:
    names = blocks((root / "images" / "ray_up.lock").read_text()).keys()
    image = blocks((root / "images" / "requirements.lock").read_text()).keys()
    assert {"boto3", "google-api-python-client", "azure-mgmt-compute"} <= names
    assert {"botocore", "azure-identity"} <= image  # for conditional writes to stores too
    assert not names & image
    assert "COPY images/ray_up.lock " in dockerfile
    built = re.findall(r'discovery\.build\(\s*"(\w+)",\s*"(\w+)"', inspect.getsource(gcp_config))
    kept = set(re.findall(r"! -name (\S+)\.json", dockerfile))
    assert kept == {f"{name}.{version}" for name, version in built}


def test_both_images_are_installed_from_the_same_three_files(root: Path, dockerfile: str) -> None:
    for name in ("debian.txt", "requirements.lock", "skypilot.lock"):
        assert f"COPY images/{name} " in dockerfile
        assert name in Path(str(rootfs.__file__)).read_text()


def test_both_images_have_the_same_system_user_and_paths(dockerfile: str) -> None:
    assert f"FROM debian:{rootfs.SUITE}-slim AS system" in dockerfile
    assert f"useradd --uid {rootfs.UID} --create-home --shell /bin/bash {rootfs.USER}" in dockerfile
    assert f"USER {rootfs.UID}:{rootfs.UID}" in dockerfile
    assert f"uv venv --python /usr/bin/python3 {rootfs.ENVIRONMENT}" in dockerfile
    assert f"~{rootfs.RUNTIME.removeprefix(rootfs.HOME)}" in dockerfile


def test_both_images_start_with_the_same_environment(dockerfile: str) -> None:
    written = dict(re.findall(r"^\s*(?:ENV )?([A-Z_]+)=(\S+)", dockerfile, re.M))
    assert {name: written.get(name) for name in images.ENVIRONMENT} == images.ENVIRONMENT


def environment_of(dockerfile: str, target: str) -> dict[str, str]:
    """The environment of a target: its own ENV lines over those of the stages that it is built from."""
    stages = {
        name: (base, body)
        for base, name, body in re.findall(
            r"^FROM (\S+) AS (\S+)\n(.*?)(?=^FROM |\Z)", dockerfile, re.M | re.S
        )
    }
    base, body = stages[target]
    own: dict[str, str] = {}
    for line in re.findall(r"^ENV ((?:.*\\\n)*.*)$", body, re.M):
        own |= dict(re.findall(r"([A-Z_]+)=(\S+)", line))
    return {**(environment_of(dockerfile, base) if base in stages else {}), **own}


def test_the_loader_finds_the_driver_where_gke_mounts_it(dockerfile: str) -> None:
    """GKE's device plugin mounts the driver and does not touch the loader's cache, unlike NVIDIA's runtime."""
    searched = environment_of(dockerfile, "cuda")["LD_LIBRARY_PATH"].split(":")
    assert f"{layout.DRIVER_MOUNT}/lib64" in searched
    assert str(process_group.DRIVER_MOUNT) in searched
    assert environment_of(dockerfile, "cuda")["PATH"] == images.ENVIRONMENT["PATH"]
    assert "LD_LIBRARY_PATH" not in environment_of(dockerfile, "cpu")


LIBRARIES = {
    "efa": ("/opt/amazon/efa/lib", "/opt/amazon/ofi-nccl/lib"),
    "infiniband": (),
}


@pytest.mark.parametrize("target", LIBRARIES)
def test_the_image_of_a_fabric_finds_its_libraries_and_the_driver(dockerfile: str, target: str) -> None:
    found = environment_of(dockerfile, target)
    assert found["LD_LIBRARY_PATH"].split(":") == [*LIBRARIES[target], f"{layout.DRIVER_MOUNT}/lib64"]
    assert found["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"


def checked_files(dockerfile: str) -> list[str]:
    """The files in /opt/microsoft whose pinned checksums a step checks."""
    (step,) = re.findall(r"^RUN mkdir -p /opt/microsoft (?:.*\\\n)*.*$", dockerfile, re.M)
    (pairs,) = re.findall(r"printf '%s  %s\\n' (.*) \| sha256sum --check --strict$", step)
    found = re.findall(r'"\$(\w+)" (\S+)', pairs)
    for argument, _ in found:
        assert re.search(rf"^ARG {argument}=[0-9a-f]{{64}}$", dockerfile, re.M), argument
    return [name for _, name in found]


def test_every_topology_that_the_contract_names_is_in_the_image(dockerfile: str) -> None:
    fast = [machine for machine in machines_of(Cloud.AZURE) if machine.rdma == "infiniband"]
    named = {node_pools.fabric_environment(machine)["NCCL_TOPO_FILE"] for machine in fast}
    assert named
    assert named <= {f"/opt/microsoft/{name}" for name in checked_files(dockerfile)}


def test_downloads_of_the_dockerfile_are_pinned(root: Path, dockerfile: str) -> None:
    fetched = re.findall(r"^ && curl -fsSLO \S+/(\S+) \\$", dockerfile, re.M)
    assert len(fetched) == len(re.findall(r"\b(?:ADD|curl|wget) ", dockerfile))
    assert [name for name in fetched if not name.startswith("aws-efa-installer")] == checked_files(dockerfile)
    assert "curl" in (root / "images" / "debian.txt").read_text().split()
    assert re.search(r"^ARG AZHPC_IMAGES=\S+/[0-9a-f]{40}$", dockerfile, re.M)
    assert "--verify aws-efa-installer-$EFA_INSTALLER.tar.gz.sig" in dockerfile
    assert re.search(r"VALIDSIG \$EFA_KEY ", dockerfile)
    assert re.search(r"^ARG EFA_KEY=[0-9A-F]{40}$", dockerfile, re.M)
    assert "latest" not in dockerfile


def test_no_target_ends_as_root(dockerfile: str) -> None:
    for body in re.split(r"^FROM ", dockerfile, flags=re.M):
        assert re.findall(r"^USER (\S+)", body, re.M)[-1:] in ([], ["1000:1000"])


@pytest.mark.skipif(shutil.which("apt-cache") is None, reason="this machine has no apt")
def test_the_packages_of_the_infiniband_image_exist_in_debian(dockerfile: str) -> None:
    if rootfs.SUITE not in Path("/etc/os-release").read_text():
        pytest.skip("this machine has another release than the image")
    (names,) = re.findall(r"--no-install-recommends (lib\S.*?) \\", dockerfile)
    done = subprocess.run(["apt-cache", "show", *names.split()], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert set(re.findall(r"^Package: (\S+)", done.stdout, re.M)) == set(names.split())


def test_the_dockerfile_ends_as_an_unprivileged_user_and_copies_every_package_of_the_project(
    dockerfile: str,
) -> None:
    assert re.findall(r"^USER (\S+)", dockerfile, re.M)[-1] == "1000:1000"
    assert [
        name
        for name in ("infra", "stacks", "policies", "training", "recipes", "trainfleet")
        if f"COPY {name} /build/source/{name}" not in dockerfile
    ] == []


def test_splitting_a_lock_loses_nothing(root: Path) -> None:
    text = (root / "images" / "requirements.lock").read_text()
    cuda, rest = rootfs.split_lock(text)
    assert blocks(cuda).keys() | blocks(rest).keys() == blocks(text).keys()
    assert not blocks(cuda).keys() & blocks(rest).keys()
    assert "torch" in blocks(rest)
    assert {"nvidia-nccl-cu13", "triton"} <= blocks(cuda).keys()


@pytest.mark.parametrize(
    ("text", "requirers"),
    [
        ("a==1 \\\n    --hash=sha256:0\n    # via b\n", {"b"}),
        ("a==1 \\\n    --hash=sha256:0\n    # via\n    #   b\n    #   c[x]\n", {"b", "c"}),
        ("a==1 \\\n    --hash=sha256:0\n", set()),
        (
            "a==1 ; x \\\n    --hash=sha256:0\n    # via b\n"
            "a==2 ; y \\\n    --hash=sha256:1\n    # via\n    #   b\n    #   c\n",
            {"b", "c"},
        ),
    ],
)
def test_the_requirers_of_a_package_are_read_in_both_forms(text: str, requirers: set[str]) -> None:
    assert lock.required_by(text) == requirers


def test_every_stage_compiles_the_project(dockerfile: str) -> None:
    """The user of a pod cannot write compiled files, so each process would compile the project again."""
    installed = [line for line in dockerfile.splitlines() if "wheel/*.whl" in line]
    assert len(installed) == 2
    assert all("--compile-bytecode" in line for line in installed)


def test_the_layer_has_modules_that_python_does_not_compile_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "IMAGE_PYTHON", sys.implementation.cache_tag)
    source = b"answer = 42\n"
    archive = tmp_path / "project.tar"
    compiled = images.bytecode("/site/compiled_once.py", source)
    assert compiled is not None
    with tarfile.open(archive, "w") as tar:
        images._add(tar, "/site/compiled_once.py", source, executable=False)
        images._add(tar, *compiled, executable=False)
    # `extractall(filter="data")` needs Python 3.11.4, and Debian 12's is 3.11.2.
    subprocess.run(["tar", "-xf", archive, "-C", tmp_path], check=True)
    monkeypatch.syspath_prepend(tmp_path / "site")

    def compiles(*_: object, **__: object) -> None:
        raise AssertionError("Python compiles it again")

    monkeypatch.setattr(SourceFileLoader, "source_to_code", compiles)
    found = importlib.import_module("compiled_once")
    assert found.answer == 42
    assert found.__file__ == str(tmp_path / "site" / "compiled_once.py")


def test_files_for_another_python_or_with_an_error_are_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "IMAGE_PYTHON", sys.implementation.cache_tag)
    assert images.bytecode("/site/broken.py", b"def (:") is None
    assert images.bytecode("/site/data.toml", b"a = 1") is None
    monkeypatch.setattr(images, "IMAGE_PYTHON", "cpython-300")
    assert images.bytecode("/site/right.py", b"a = 1") is None
