"""`trainfleet image`: build with buildah, push over TLS to a registry with a login, pull by digest in a pod.

One test does it with a checkout of its own, whose image is small, and one (deep) with the target `cpu` of this
checkout.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import Cluster, parsed, until
from tests.cluster.debian import unpacked
from tests.cluster.image_builds import Builder
from tests.cluster.image_registry import Registry, registry

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3000)]
NAMESPACE = "image-push"
DOCKERFILE = """\
FROM scratch AS cpu
COPY busybox /bin/busybox
COPY content /content
"""


@dataclass(frozen=True)
class Place:
    """A registry, a namespace whose pods may pull from it, and a builder."""

    cluster: Cluster
    registry: Registry
    builder: Builder

    @property
    def repository(self) -> str:
        return f"{self.registry.address}/training"

    def image(self, *arguments: str, limit: float = 600) -> subprocess.CompletedProcess[str]:
        return self.builder.image(*arguments, limit=limit)

    def push(self, checkout: Path) -> dict[str, Any]:
        """The one image that `push` reports."""
        given = ("--target", "cpu", "--checkout", str(checkout), *self.place())
        (row,) = parsed(self.image("push", *given, "--json", limit=1800))["images"]
        return dict(row)

    def place(self) -> tuple[str, ...]:
        return ("--registry", self.repository, "--ca", str(self.registry.authority))

    def listed(self) -> dict[str, dict[str, Any]]:
        """The rows of `list` by tag."""
        return {row["tag"]: row for row in parsed(self.image("list", *self.place(), "--json"))["images"]}

    def output_of(self, name: str, image: str, *command: str) -> str:
        """Run a command in a pod of an image; its output. The kubelet always pulls the image."""
        container = {"name": "main", "image": image, "imagePullPolicy": "Always", "command": [*command]}
        spec = {
            "restartPolicy": "Never",
            "imagePullSecrets": [{"name": "registry"}],
            "containers": [container],
        }
        metadata = {"name": name, "namespace": NAMESPACE}
        self.cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

        def phase() -> str:
            pod = json.loads(self.cluster.kubectl("get", "pod", name, "-n", NAMESPACE, "-o", "json"))
            status = pod["status"]
            waiting = [each["state"].get("waiting", {}) for each in status.get("containerStatuses", [])]
            failed = [row for row in waiting if row.get("reason") in ("ErrImagePull", "ImagePullBackOff")]
            assert not failed, failed
            return status["phase"] if status["phase"] in ("Succeeded", "Failed") else ""

        ended = until(phase, f"the end of {name}", limit=900)
        output = self.cluster.kubectl("logs", name, "-n", NAMESPACE)
        assert ended == "Succeeded", output
        return output


@pytest.fixture(scope="module")
def place(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, root: Path) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("image-push")
    builder = Builder(folder / "builder", root)
    builder.folder.mkdir()
    with registry(str(cluster.state.host_address), folder) as server:
        trusted = cluster.state.registries / server.address
        trusted.mkdir(parents=True)
        shutil.copyfile(server.authority, trusted / "ca.crt")
        logins = {"auths": {server.address: {"auth": server.login}}}
        (builder.folder / "logins.json").write_text(json.dumps(logins))
        cluster.kubectl("create", "namespace", NAMESPACE)
        cluster.kubectl(
            *("create", "secret", "generic", "registry", "-n", NAMESPACE),
            "--type=kubernetes.io/dockerconfigjson",
            f"--from-file=.dockerconfigjson={builder.folder}/logins.json",
        )
        accounts = ("get", "serviceaccount", "default", "-n", NAMESPACE, "-o", "name", "--ignore-not-found")
        until(lambda: cluster.kubectl(*accounts), "the namespace's account")
        yield Place(cluster, server, builder)
        cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=true")
        shutil.rmtree(trusted)
    shutil.rmtree(folder)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with an images/Dockerfile whose target `cpu` is small."""
    packages = unpacked(tmp_path / "debian", "busybox-static")
    folder = tmp_path / "checkout"
    (folder / "images").mkdir(parents=True)
    (folder / "images" / "Dockerfile").write_text(DOCKERFILE)
    (folder / "images" / "Dockerfile.dockerignore").write_text("**/*.log\n")
    (folder / "images" / "requirements.lock").write_text("")
    (busybox,) = packages.rglob("bin/busybox")
    shutil.copy(busybox, folder / "busybox")
    (folder / "content").write_text("first\n")
    return folder


def test_an_image_is_built_pushed_over_tls_and_pulled_by_digest(place: Place, checkout: Path) -> None:
    build = ("build", "--target", "cpu", "--checkout", str(checkout), "--json")
    options = ("--", "--isolation=chroot")
    refused = place.image("push", "--target", "cpu", "--checkout", str(checkout), *place.place())
    assert refused.returncode == 1
    assert "trainfleet image build --target cpu" in refused.stderr

    (first,) = parsed(place.image(*build, *options))["images"]
    assert first["new"]
    pushed = place.push(checkout)
    assert (pushed["new"], pushed["tag"]) == (True, first["tag"])
    assert pushed["image"] == f"{place.repository}@{pushed['digest']}"
    assert place.output_of("first", pushed["image"], "/bin/busybox", "cat", "/content") == "first\n"

    # The same content is neither built nor pushed again, and a file that is ignored is not content.
    (checkout / "build.log").write_text("ignored")
    (again,) = parsed(place.image(*build, *options))["images"]
    assert (again["new"], again["tag"]) == (False, first["tag"])
    puts = [row for row in place.registry.requests() if row.startswith(("PUT", "POST", "PATCH"))]
    assert place.push(checkout) == pushed | {"new": False}
    assert [row for row in place.registry.requests() if row.startswith(("PUT", "POST", "PATCH"))] == puts

    (checkout / "content").write_text("second\n")
    (second,) = parsed(place.image(*build, *options))["images"]
    changed = place.push(checkout)
    assert second["tag"] != first["tag"]
    assert place.output_of("second", changed["image"], "/bin/busybox", "cat", "/content") == "second\n"
    # The digest still names what was launched before.
    assert place.output_of("once-more", pushed["image"], "/bin/busybox", "cat", "/content") == "first\n"
    both = ("--registry", f"{place.registry.address}/second", *place.place())
    rows = parsed(place.image("push", "--target", "cpu", "--checkout", str(checkout), *both, "--json"))[
        "images"
    ]
    assert {row["repository"]: row["new"] for row in rows} == {
        place.repository: False,
        f"{place.registry.address}/second": True,
    }
    listed = place.listed()
    assert {tag: row["digest"] for tag, row in listed.items()} == {
        pushed["tag"]: pushed["digest"],
        changed["tag"]: changed["digest"],
    }
    assert {row["target"] for row in listed.values()} == {"cpu"}
    assert all(row["bytes"] > 100_000 and row["created"] for row in listed.values())


def test_a_registry_is_reached_only_with_its_authority_and_a_login(place: Place, tmp_path: Path) -> None:
    untrusted = place.image("list", "--registry", place.repository)
    assert untrusted.returncode == 1
    assert "--ca FILE" in untrusted.stderr
    logins = place.builder.folder / "logins.json"
    saved = logins.read_text()
    logins.write_text("{}")
    try:
        refused = place.image("list", *place.place())
    finally:
        logins.write_text(saved)
    assert refused.returncode == 1
    assert "401" in refused.stderr
    assert "log in to" in refused.stderr


@pytest.mark.deep
def test_the_cpu_target_is_built_pushed_and_pulled(place: Place, root: Path) -> None:
    free = shutil.disk_usage(place.builder.folder).free / 1e9
    if free < 30:
        pytest.skip(f"{place.builder.folder} has {free:.0f} GB free, the image needs 30 in all")
    place.builder.make_base()
    build = ("build", "--target", "cpu", "--checkout", str(root), "--json")
    options = ("--", *place.builder.options())
    built = place.image(*build, *options, limit=2700)
    assert built.returncode == 0, (built.stdout + built.stderr)[-4000:]
    pushed = place.push(root)
    program = "import trainfleet.training, torch, ray, os; print(os.getuid(), torch.ones(2).sum().item())"
    assert place.output_of("cpu", pushed["image"], "python", "-c", program) == "1000 2.0\n"

    lock = place.builder.folder / "requirements.lock"
    added = place.image(*build, "--requirements", str(locked("einops", lock)), *options, limit=900)
    (row,) = parsed(added)["images"]
    assert row["tag"] != pushed["tag"]
    inside = place.builder.start(row["image"])
    assert place.builder.run(inside, "python", "-c", "import einops, torch; print('both')") == "both\n"
    assert place.builder.run(inside, "id", "-u") == "1000\n"


def locked(package: str, file: Path) -> Path:
    """A lock of one package with its hashes, as docs/training-image.md makes it."""
    command = ["uv", "pip", "compile", "--generate-hashes", "--no-emit-index-url", "--python-version", "3.11"]
    command += ["--constraints", "images/requirements.lock", "-", "-o", str(file)]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path}
    subprocess.run(command, input=package, text=True, capture_output=True, check=True, env=environment)
    return file
