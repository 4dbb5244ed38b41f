"""The cluster's images: made once into a store in the user's cache, cloned by each cluster, the project's
layer on top of it.

The store is containerd's own folder with `pause` and the training image's base in it. A cluster gets it by
hard links in a second
or two, and keeps the list of the base's layers, because the locks may change while it is up. A new store
takes over the layers of
older ones that have not changed. Easy to get wrong: containerd writes its databases in place, so those are
copied and not linked.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from ipaddress import IPv4Network
from pathlib import Path

from trainfleet.errors import InputError, Problem
from trainfleet.local_cluster import node, oci, rootfs, servers
from trainfleet.local_cluster.state import State
from trainfleet.toolchain import build_lock, cache_folder

Progress = Callable[[str], None]
LOCAL = "localhost/trainfleet:local"
BASE = "localhost/trainfleet-base:local"
_LAYERS = "layers.json"
_ARCHIVE = "import.tar"
ENVIRONMENT = {
    "PATH": f"{rootfs.ENVIRONMENT}/bin:{rootfs.HOME}/.local/bin:{rootfs.PATH}",
    "HOME": rootfs.HOME,
    "LANG": "C.UTF-8",
    "PYTHONUNBUFFERED": "1",
    "UV_OFFLINE": "1",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
}


def checkout() -> Path:
    """The checkout, whose images/ and packages go into the image.

    Raises:
        InputError: this is an installed package, without them.
    """
    root = Path(__file__).resolve().parent.parent.parent
    if not (root / "images" / "debian.txt").is_file():
        raise InputError(
            "the training image is made from a checkout",
            [Problem(str(root), "has no folder images", "run this in a checkout, or pass --no-image")],
        )
    return root


def store(image: bool) -> Path:
    """Where the store for these locks and packages is, or will be; one without the training image when none
    is wanted.
    """
    if not image:
        return cache_folder() / "images-none"
    folder = checkout() / "images"
    keys = "".join(stage.key(folder) for stage in rootfs.STAGES)
    return cache_folder() / f"images-{hashlib.sha256(keys.encode()).hexdigest()[:16]}"


def prepare(progress: Progress, image: bool) -> Path:
    """Make the store, unless it is there; returns it. The locks are read now and not again: they may be
    edited while a cluster comes up.
    """
    target = store(image)
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with build_lock(target.with_suffix(".lock"), progress, "image"):
        if target.is_dir():
            return target
        for stale in target.parent.glob(f".{target.name}.*"):
            shutil.rmtree(stale, ignore_errors=True)
        work = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
        try:
            _fill(work, progress, image)
            os.replace(work / "made", target)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return target


def _fill(work: Path, progress: Progress, image: bool) -> None:
    made = rootfs.make(checkout() / "images", work, progress, held()) if image else []
    layers = [oci.layer(path) for _, path in made]
    rows = [
        {"key": key, "digest": each.digest, "size": each.size}
        for (key, _), each in zip(made, layers, strict=True)
    ]
    # A node with nothing but containerd: no link and no control group; its processes end with this one,
    # however that ends.
    it = State("store", work / "node", IPv4Network("10.0.0.0/16"), work.name)
    it.folder.mkdir(mode=0o700)
    servers.write_configuration(it)
    pid = node.start(it, tied=True)
    try:
        it.file("processes.json").write_text(
            json.dumps({name: server.wanted() for name, server in servers.runtime(it).items()})
        )
        progress("image: importing")
        load(
            it,
            pid,
            servers.PAUSE,
            [oci.layer(_pause(work))],
            oci.Settings(entrypoint=["/busybox", "sleep", "2147483647"]),
        )
        if image:
            load(it, pid, BASE, layers, settings())
    finally:
        node.stop(it)
    target = work / "made"
    target.mkdir()
    os.replace(it.file("var", "lib", "containerd"), target / "containerd")
    (target / _LAYERS).write_text(json.dumps(rows))


def held() -> dict[str, Path]:
    """The layers that lie in the stores of this machine, by their keys."""
    rows = [
        (path.parent, row)
        for path in cache_folder().glob(f"images-*/{_LAYERS}")
        for row in json.loads(path.read_text())
    ]
    found = {row["key"]: _blob(made, row["digest"]) for made, row in rows if "key" in row}
    return {key: path for key, path in found.items() if path.is_file()}


def settings() -> oci.Settings:
    return oci.Settings(ENVIRONMENT, f"{rootfs.UID}:{rootfs.UID}", rootfs.HOME, command=["/bin/bash"])


def _pause(work: Path) -> Path:
    archive = work / "pause.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add("/bin/busybox", "busybox", recursive=False)
    return archive


def load(it: State, pid: int, reference: str, layers: list[oci.Layer], how: oci.Settings) -> None:
    """Import an image into a node's store."""
    archive = it.file(_ARCHIVE)
    oci.write(archive, reference, layers, how)
    try:
        _wait_for_runtime(pid)
        ctr(pid, "images", "import", str(archive))
    finally:
        archive.unlink(missing_ok=True)


def _wait_for_runtime(pid: int) -> None:
    import time

    from trainfleet.errors import TrainfleetError

    deadline = time.monotonic() + 30
    while True:
        try:
            ctr(pid, "version")
            return
        except TrainfleetError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def ctr(pid: int, *arguments: str) -> str:
    return node.enter(pid, ["ctr", "--address", servers.SOCKET, "--namespace", "k8s.io", *arguments]).stdout


def load_archive(pid: int, archive: Path) -> str:
    """Import an archive that may lie anywhere on this machine; returns what the runtime says."""
    with archive.open("rb") as given:
        return node.enter(
            pid, ["ctr", "--address", servers.SOCKET, "--namespace", "k8s.io", "images", "import", "-"], given
        ).stdout


def clone(it: State, made: Path) -> None:
    """Give a new cluster its own copy of the store: files that never change as hard links, databases as
    copies.
    """
    target = it.file("var", "lib", "containerd")
    if target.is_dir():
        return
    work = it.file("var", "lib", "containerd.new")
    shutil.rmtree(work, ignore_errors=True)
    work.parent.mkdir(parents=True, exist_ok=True)
    source = made / "containerd"
    same = (
        subprocess.run(["cp", "-al", str(source), str(work)], capture_output=True, check=False).returncode
        == 0
    )
    if not same:  # another file system
        shutil.rmtree(work, ignore_errors=True)
        subprocess.run(["cp", "-a", str(source), str(work)], check=True)
    for database in source.glob("*/*.db"):
        copy = work / database.relative_to(source)
        copy.unlink()
        shutil.copy2(database, copy)
    shutil.copyfile(made / _LAYERS, it.file(_LAYERS))
    os.replace(work, target)


def project_files() -> Iterator[tuple[Path, str]]:
    """The project's files and where each lies in the image."""
    root = checkout()
    site = f"{rootfs.ENVIRONMENT}/lib/python3.11/site-packages"
    # The folders below trainfleet that are links (infra, training, ...) are followed.
    for folder, below, names in os.walk(root / "trainfleet", followlinks=True):
        below[:] = sorted(set(below) - {"__pycache__"})
        for path in (Path(folder) / name for name in sorted(names)):
            yield path, f"{site}/{path.relative_to(root)}"


def load_project(it: State, pid: int, made: Path, progress: Progress) -> bool:
    """Put the project as it is now into the training image, on the base that a store holds; returns whether
    anything changed.
    """
    rows = (made / _LAYERS).read_text()
    digest = hashlib.sha256(rows.encode())
    files = [(path, place, path.read_bytes()) for path, place in project_files()]
    for _, place, data in files:
        digest.update(place.encode() + b"\0" + data)
    stamp = it.file("project")
    if stamp.exists() and stamp.read_text() == digest.hexdigest():
        return False
    base = [oci.Layer(row["digest"], row["size"], _blob(made, row["digest"])) for row in json.loads(rows)]
    if it.file(_LAYERS).read_text() != rows:  # the cluster was made without it, or with another
        progress(f"importing {BASE}")
        load(it, pid, BASE, base, settings())
        it.file(_LAYERS).write_text(rows)
    progress(f"putting the project into {LOCAL}")
    archive = it.file("project.tar")
    with tarfile.open(archive, "w") as tar:
        for path, place, data in files:  # as they were read: an editor may be saving one just now
            _add(tar, place, data, executable=os.access(path, os.X_OK))
        for place, text in _metadata().items():
            _add(tar, place, text.encode(), executable="/bin/" in place)
    there = [oci.Layer(each.digest, each.size) for each in base]
    try:
        load(it, pid, LOCAL, [*there, oci.layer(archive)], settings())
    finally:
        archive.unlink()
    stamp.write_text(digest.hexdigest())
    return True


def _blob(made: Path, digest: str) -> Path:
    """Where a layer lies in a store."""
    return made / "containerd" / "io.containerd.content.v1.content" / "blobs" / digest.replace(":", "/")


def _metadata() -> dict[str, str]:
    """What makes the files an installed package: its name, its version and its command."""
    from trainfleet import __version__

    about = f"{rootfs.ENVIRONMENT}/lib/python3.11/site-packages/trainfleet-{__version__}.dist-info"
    script = f"#!{rootfs.ENVIRONMENT}/bin/python\nfrom trainfleet.cli import main\n\nmain()\n"
    return {
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: trainfleet\nVersion: {__version__}\n",
        f"{about}/entry_points.txt": "[console_scripts]\ntrainfleet = trainfleet.cli:main\n",
        f"{rootfs.ENVIRONMENT}/bin/trainfleet": script,
    }


def _add(tar: tarfile.TarFile, place: str, data: bytes, *, executable: bool) -> None:
    import io

    about = tarfile.TarInfo(place.lstrip("/"))
    about.size, about.mode = len(data), 0o755 if executable else 0o644
    tar.addfile(about, io.BytesIO(data))
