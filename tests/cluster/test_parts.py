"""Parts of the local cluster, without root and without a cluster."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import IO, Any

import pytest

from trainfleet.local_cluster import cgroups, cuda_stubs, node_init, oci, pins, servers, store, volumes


def read(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as tar:
        files = [member for member in tar if member.isfile()]
        return {member.name: tar.extractfile(member).read() for member in files}  # type: ignore[union-attr]


def test_an_archive_names_every_blob_by_its_digest(tmp_path: Path) -> None:
    (tmp_path / "layer.tar").write_bytes(b"not looked into")
    bottom = oci.Layer("sha256:" + "0" * 64, 5)
    top = oci.layer(tmp_path / "layer.tar")
    oci.write(
        tmp_path / "image.tar",
        "localhost/x:1",
        [bottom, top],
        oci.Settings({"A": "b"}, "1:1", "/home", command=["sh"]),
    )
    blobs = read(tmp_path / "image.tar")
    for name, data in blobs.items():
        if name.startswith("blobs/sha256/"):
            assert hashlib.sha256(data).hexdigest() == name.rsplit("/", 1)[-1]
    found = json.loads(blobs["index.json"])["manifests"][0]
    assert found["annotations"]["io.containerd.image.name"] == "localhost/x:1"
    manifest = json.loads(blobs[f"blobs/{found['digest'].replace(':', '/')}"])
    assert [row["digest"] for row in manifest["layers"]] == [bottom.digest, top.digest]
    config = json.loads(blobs[f"blobs/{manifest['config']['digest'].replace(':', '/')}"])
    assert config["rootfs"]["diff_ids"] == [bottom.digest, top.digest]
    assert (config["config"]["Env"], config["config"]["User"], config["config"]["Cmd"]) == (
        ["A=b"],
        "1:1",
        ["sh"],
    )
    assert f"blobs/sha256/{'0' * 64}" not in blobs, "a layer without a file is in the archive"


def server(tmp_path: Path, *command: str) -> node_init.Server:
    (tmp_path / "logs").mkdir()
    return node_init.Server("one", {"command": list(command), "environment": {"TEXT": "this"}}, tmp_path)


def test_a_server_restarts_with_growing_delays(tmp_path: Path) -> None:
    one = server(tmp_path, "sh", "-c", "echo $TEXT; exit 1")
    waits = []
    for starts in (1, 2, 3):
        one.next_start = 0.0
        assert one.poll()
        assert one.starts == starts
        assert one.child is not None
        one.child.wait(30)
        assert one.poll()
        waits.append(one.next_start - time.monotonic())
    assert waits == sorted(waits)
    assert (tmp_path / "logs" / "one.log").read_text() == "this\n" * 3


def test_a_server_that_cannot_start_logs_the_reason(tmp_path: Path) -> None:
    one = server(tmp_path, "/nowhere/to-be-found")
    assert one.poll()
    assert "cannot be started" in (tmp_path / "logs" / "one.log").read_text()
    assert not one.poll(), "the start was retried at once"


def test_a_log_over_the_limit_is_truncated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = server(tmp_path, "true")
    (tmp_path / "logs" / "one.log").write_text("x" * 100)
    monkeypatch.setattr(node_init, "LOG_LIMIT", 99)
    one.limit_log()
    assert (tmp_path / "logs" / "one.log").read_text() == ""


CLAIM: dict[str, Any] = {
    "metadata": {"name": "data", "namespace": "x", "uid": "1"},
    "spec": {
        "storageClassName": "local",
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "1Gi"}},
    },
}


class Api:
    """The two lists that the provisioner reads, and the changes that it requested."""

    def __init__(self, claims: list[dict[str, Any]], have: list[dict[str, Any]]) -> None:
        self.claims, self.have, self.asked = claims, have, list[tuple[str, str, Any]]()

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        if method != "GET":
            self.asked.append((method, path, body))
            return {}
        return {"items": self.have if "persistentvolumes?" in path else self.claims}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"storageClassName": "other"}, False),
        ({"storageClassName": None}, False),
        ({"volumeName": "there"}, False),
        ({"volumeMode": "Block"}, False),
    ],
)
def test_only_open_claims_of_the_class_get_a_volume(change: dict[str, Any], expected: bool) -> None:
    assert volumes.needs_volume({**CLAIM, "spec": {**CLAIM["spec"], **change}}, "local") is expected
    assert not volumes.needs_volume(
        {**CLAIM, "metadata": {**CLAIM["metadata"], "deletionTimestamp": "now"}}, "local"
    )


def test_a_volume_is_a_folder_that_is_deleted_with_its_claim(tmp_path: Path) -> None:
    api = Api([CLAIM], [])
    volumes.reconcile(api, "local", tmp_path)  # type: ignore[arg-type]  # the two methods that are used
    ((method, _, made),) = api.asked
    assert method == "POST"
    assert made["spec"]["claimRef"]["uid"] == "1"
    assert (tmp_path / "pvc-1").stat().st_mode & 0o777 == 0o777
    api = Api([], [{**made, "status": {"phase": "Bound"}}])
    volumes.reconcile(api, "local", tmp_path)  # type: ignore[arg-type]  # the two methods that are used
    assert (api.asked, (tmp_path / "pvc-1").exists()) == ([], True)
    api = Api([], [{**made, "status": {"phase": "Released"}}])
    volumes.reconcile(api, "local", tmp_path)  # type: ignore[arg-type]  # the two methods that are used
    assert api.asked == [("DELETE", "/api/v1/persistentvolumes/pvc-1", None)]
    assert not (tmp_path / "pvc-1").exists()


def test_a_foreign_volume_is_kept(tmp_path: Path) -> None:
    (tmp_path / "pvc-2").mkdir()
    theirs = {
        "metadata": {"name": "pvc-2"},
        "spec": {"persistentVolumeReclaimPolicy": "Delete"},
        "status": {"phase": "Released"},
    }
    api = Api([], [theirs])
    volumes.reconcile(api, "local", tmp_path)  # type: ignore[arg-type]  # the two methods that are used
    assert (api.asked, (tmp_path / "pvc-2").exists()) == ([], True)


def test_control_groups_are_created_and_removed_in_each_hierarchy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "hierarchies", lambda: [tmp_path / "memory", tmp_path / "unified"])
    for root in cgroups.hierarchies():
        (root / "somebody-elses").mkdir(parents=True)
    for _ in range(2):
        cgroups.create("ours")
    (tmp_path / "memory" / "ours" / "kubepods" / "pod1" / "c1").mkdir(parents=True)
    assert len(cgroups.existing("ours")) == 2
    cgroups.remove("ours")
    assert cgroups.existing("ours") == []
    assert (tmp_path / "memory" / "somebody-elses").is_dir()


@pytest.mark.skipif(
    shutil.which("gcc") is None or shutil.which("nm") is None, reason="needs gcc and binutils"
)
def test_a_stub_satisfies_the_loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that needs a versioned function and data of a large library loads with the stub only."""
    monkeypatch.setattr(cuda_stubs, "STUB_FROM_BYTES", 1)
    real, torch, image = tmp_path / "nvidia" / "lib", tmp_path / "torch" / "lib", tmp_path / "image"
    for folder in (real, torch):
        folder.mkdir(parents=True)
    (tmp_path / "large.c").write_text(
        "int big(void) { return 1; } int table[4] = {1}; int other(void) { return 2; }\n"
    )
    (tmp_path / "large.map").write_text("V1 { global: big; table; other; };\n")
    (tmp_path / "user.c").write_text(
        "int big(void); extern int table[]; "
        "int used(void) { return big() + table[0]; } int (*at)(void) = big;\n"
    )
    command = ["gcc", "-shared", "-fPIC"]
    large = [
        *command,
        f"-Wl,--version-script,{tmp_path / 'large.map'}",
        "-Wl,-soname,liblarge.so.1",
        "-o",
        str(real / "liblarge.so.1"),
    ]
    subprocess.run([*large, str(tmp_path / "large.c")], check=True)
    user = [*command, "-o", str(torch / "libuser.so"), str(tmp_path / "user.c"), str(real / "liblarge.so.1")]
    subprocess.run([*user, "-Wl,-z,now", f"-Wl,-rpath,{image / 'lib'}"], check=True)
    loads = [sys.executable, "-c", f"import ctypes; ctypes.CDLL({str(torch / 'libuser.so')!r})"]
    assert subprocess.run(loads, capture_output=True, check=False).returncode != 0
    assert cuda_stubs.install_stubs(tmp_path / "nvidia", tmp_path / "torch", image, tmp_path) == 1
    assert subprocess.run(loads, capture_output=True, check=False).returncode == 0


def test_versions_come_from_the_pins_and_are_set_in_the_build() -> None:
    assert {program.name: program.version for program in pins.PROGRAMS} == {
        "kube": "1.36.3",
        "coredns": "1.12.4",
        "ray-operator": "1.6.0",
        "kwok": "0.7.0",
        "device-plugin": "0.36.3",
        "network-policies": "0.8.0",
        "kueue": "0.17.1",
    }
    assert pins.KUBE.flags.format(version=pins.KUBE.version).endswith("=v1.36.3")
    assert len({program.key for program in pins.PROGRAMS}) == 7


def test_a_changed_configuration_changes_the_process_spec(tmp_path: Path) -> None:
    file = tmp_path / "config" / "server.yaml"
    file.parent.mkdir()
    server = servers.Server(["server", f"--config={file}", "--verbose"])
    seen = []
    for text in ("limit: 1\n", "limit: 2\n", "limit: 1\n"):
        file.write_text(text)
        seen.append(server.process_spec())
    assert seen[0] == seen[2] != seen[1]


def test_a_detached_store_is_built_before_it_has_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    class Started:
        def __init__(self, command: list[str], *, stdout: IO[bytes], **_: object) -> None:
            calls.append("start")
            stdout.write(b"one\ntwo\nthree\n")
            stdout.flush()

    monkeypatch.setattr(store, "gateways", lambda: calls.append("build"))
    monkeypatch.setattr(store.subprocess, "Popen", Started)
    assert store.start_detached("local", "training", tmp_path, 0) == "one\ntwo\nthree"
    assert calls == ["build", "start"]
