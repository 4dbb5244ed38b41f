"""Builds are cached: programs, each layer of the training image, and its base in a running cluster."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest

from trainfleet.local_cluster import builds, images, oci, pins, rootfs
from trainfleet.local_cluster.state import State


def quiet(_text: str) -> None:
    """Print nothing."""


def test_a_build_replaces_a_folder_without_its_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(
        builds, "run_go", lambda command, *_: Path(command[command.index("-o") + 1]).write_text("built")
    )
    target = builds.folder_of(pins.COREDNS)
    target.mkdir(parents=True)
    (target / "left").touch()
    assert pins.COREDNS in builds.missing()
    builds._build(pins.COREDNS, Path("go"), quiet)
    assert [path.name for path in target.iterdir()] == ["coredns"]
    assert pins.COREDNS not in builds.missing()


def test_an_optional_program_is_built_only_when_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    optional = {pins.KWOK, pins.DEVICE_PLUGIN, pins.NETWORK_POLICIES, pins.KUEUE}
    assert set(builds.missing()) - set(builds.missing(set())) == optional


@pytest.mark.parametrize(
    ("file", "same"), [("skypilot.lock", 2), ("requirements.lock", 2), ("debian.txt", 0)]
)
def test_a_changed_file_changes_its_layer_and_only_the_system_changes_the_others(
    file: str, same: int, root: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(root / "images", tmp_path / "images"))
    before = [stage.key(copy) for stage in rootfs.STAGES]
    (copy / file).write_text((copy / file).read_text() + "\n# changed\n")
    after = [stage.key(copy) for stage in rootfs.STAGES]
    assert len(set(before) & set(after)) == same
    assert len(set(before)) == 3


def test_cached_layers_are_not_built_and_the_system_is_unpacked_for_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    given, work = tmp_path / "images", tmp_path / "work"
    given.mkdir()

    def stage(file: str, folder: str, content: str) -> rootfs.Stage:
        (given / file).write_text(content)

        def make(_images: Path, tree: Path, _work: Path) -> None:
            made.append(file)
            place = tree / folder.lstrip("/")
            place.mkdir(parents=True, exist_ok=True)
            (place / file).write_text(content)

        return rootfs.Stage(file, folder, file, make, 1)

    def run(command: Sequence[str], *_: Any) -> None:
        subprocess.run(command, check=True)

    monkeypatch.setattr(rootfs, "_run", run)
    monkeypatch.setattr(
        rootfs,
        "STAGES",
        (stage("system", "", "s"), stage("packages", "/opt", "p"), stage("runtime", "/home", "r")),
    )
    work.mkdir()
    first = rootfs.build_layers(given, work, quiet, {})
    assert made == ["system", "packages", "runtime"]
    held = {key: path.rename(tmp_path / key) for key, path in first}
    made.clear()
    (given / "runtime").write_text("changed")
    second = rootfs.build_layers(given, work, quiet, held)
    assert made == ["runtime"]
    assert [key in held for key, _ in second] == [True, True, False]
    with tarfile.open(second[2][1]) as tar:
        assert [name for name in tar.getnames() if name.endswith("system")] == []
        assert "./home/runtime" in tar.getnames()
    assert not (work / "root").exists()


def test_a_layer_is_found_in_the_store_that_holds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    blobs = (
        tmp_path
        / "trainfleet"
        / "images-1"
        / "containerd"
        / "io.containerd.content.v1.content"
        / "blobs"
        / "sha256"
    )
    blobs.mkdir(parents=True)
    (blobs / "aa").touch()
    rows = [
        {"key": "here", "digest": "sha256:aa", "size": 0},
        {"key": "lost", "digest": "sha256:bb", "size": 0},
    ]
    (tmp_path / "trainfleet" / "images-1" / "layers.json").write_text(json.dumps(rows))
    assert images.cached_layers() == {"here": blobs / "aa"}


def test_only_a_changed_base_is_imported_before_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[tuple[str, list[str]]] = []
    source = tmp_path / "module.py"
    source.write_text("one = 1\n")

    def load(_nodes: object, reference: str, layers: list[oci.Layer], _how: oci.Settings) -> None:
        loaded.append((reference, [each.digest for each in layers if each.file is not None]))

    monkeypatch.setattr(images, "load", load)
    monkeypatch.setattr(images, "project_files", lambda: iter([(source, "/site/module.py")]))
    it = State("one", tmp_path / "state", IPv4Network("10.213.0.0/16"), "")
    it.folder.mkdir()
    it.file("layers.json").write_text("[]")

    def store(name: str) -> Path:
        (tmp_path / name).mkdir()
        (tmp_path / name / "layers.json").write_text(
            json.dumps([{"key": name, "digest": f"sha256:{name}", "size": 1}])
        )
        return tmp_path / name

    old, new = store("old"), store("new")
    assert images.load_project([(it.control_plane, 1)], old, quiet)
    assert [reference for reference, _ in loaded] == [images.BASE, images.LOCAL]
    assert not images.load_project([(it.control_plane, 1)], old, quiet)
    source.write_text("one = 2\n")
    loaded.clear()
    assert images.load_project([(it.control_plane, 1)], old, quiet)
    assert [reference for reference, _ in loaded] == [images.LOCAL]
    loaded.clear()
    assert images.load_project([(it.control_plane, 1)], new, quiet)
    assert loaded[0] == (images.BASE, ["sha256:new"])
    assert loaded[1][0] == images.LOCAL


def test_a_stage_of_another_version_has_another_key(root: Path) -> None:
    first = rootfs.STAGES[0]
    other = dataclasses.replace(first, version=first.version + 1)
    assert other.key(root / "images") != first.key(root / "images")
