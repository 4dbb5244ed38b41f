"""The cluster's images: built once into a store in the user's cache, cloned by each cluster, with the
project's layer on top.

The store is containerd's own folder with `pause` and the training image's base in it. A cluster clones it by
hard links in a second or two. A new store reuses the unchanged layers of older ones.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import marshal
import os
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Network
from pathlib import Path

from trainfleet import __version__
from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.local_cluster import node as nodes
from trainfleet.local_cluster import oci, rootfs, servers
from trainfleet.local_cluster.state import Node, State
from trainfleet.toolchain import build_lock, cache_folder

Progress = Callable[[str], None]
Running = tuple[Node, int]
"""A node and its first process."""
LOCAL = "localhost/trainfleet:local"
BASE = "localhost/trainfleet-base:local"
IMAGE_PYTHON = "cpython-311"
"""The tag of the image's Python in the names of compiled files."""
BUSYBOX = Path("/bin/busybox")
"""The only file of the pause image, from this machine. It has to be static."""
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
SETTINGS = oci.Settings(ENVIRONMENT, f"{rootfs.UID}:{rootfs.UID}", rootfs.HOME, command=["/bin/bash"])


def checkout() -> Path:
    """The checkout, whose images/ and packages go into the image.

    Raises:
        InputError: this is an installed package, which does not contain them.
    """
    root = Path(__file__).resolve().parent.parent.parent
    if not (root / "images" / "debian.txt").is_file():
        raise InputError(
            "the training image is built from a checkout",
            [Problem(str(root), "has no folder images", "run this in a checkout, or pass --no-image")],
        )
    return root


def store_folder(image: bool) -> Path:
    """The store for the current locks, packages and busybox, whether it exists or not; without `image`, the
    store that has no training image.
    """
    digest = hashlib.sha256(BUSYBOX.read_bytes() if BUSYBOX.is_file() else b"")
    for stage in rootfs.STAGES if image else ():
        digest.update(stage.key(checkout() / "images").encode())
    return cache_folder() / f"images-{'' if image else 'none-'}{digest.hexdigest()[:16]}"


def prepare(progress: Progress, image: bool) -> Path:
    """Build the store unless it exists; returns it. The locks are read once, because they may be edited while
    a cluster starts.
    """
    target = store_folder(image)
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
    built = rootfs.build_layers(checkout() / "images", work, progress, cached_layers()) if image else []
    layers = [oci.layer(path) for _, path in built]
    rows = [
        {"key": key, "digest": each.digest, "size": each.size}
        for (key, _), each in zip(built, layers, strict=True)
    ]
    # A node that runs only containerd, without a link and control groups; it ends with this process.
    state = State("store", work / "node", IPv4Network("10.0.0.0/16"), work.name)
    state.folder.mkdir(mode=0o700)
    servers.write_configuration(state)
    first = state.control_plane
    running = [(first, nodes.start(first, die_with_parent=True))]
    try:
        specs = {name: server.process_spec() for name, server in servers.runtime(first).items()}
        state.file("processes.json").write_text(json.dumps(specs))
        progress("image: importing")
        sleep = oci.Settings(entrypoint=["/busybox", "sleep", "2147483647"])
        load(running, servers.PAUSE, [oci.layer(_pause_layer(work))], sleep)
        if image:
            load(running, BASE, layers, SETTINGS)
    finally:
        nodes.stop(first.token)
    target = work / "made"
    target.mkdir()
    os.replace(state.file("var", "lib", "containerd"), target / "containerd")
    (target / _LAYERS).write_text(json.dumps(rows))


def cached_layers() -> dict[str, Path]:
    """The layers in the stores of this machine, by key."""
    rows = [
        (path.parent, row)
        for path in cache_folder().glob(f"images-*/{_LAYERS}")
        for row in json.loads(path.read_text())
    ]
    found = {row["key"]: _blob(store, row["digest"]) for store, row in rows if "key" in row}
    return {key: path for key, path in found.items() if path.is_file()}


def _pause_layer(work: Path) -> Path:
    archive = work / "pause.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(BUSYBOX, "busybox", recursive=False)
    return archive


def load(running: Sequence[Running], reference: str, layers: list[oci.Layer], settings: oci.Settings) -> None:
    """Import an image into the stores of nodes of one cluster."""
    archive = running[0][0].cluster.file(_ARCHIVE)
    oci.write(archive, reference, layers, settings)

    def import_into(pid: int) -> None:
        _wait_for_runtime(pid)
        ctr(pid, "images", "import", str(archive))

    try:
        with ThreadPoolExecutor(len(running)) as pool:
            list(pool.map(import_into, (pid for _, pid in running)))
    finally:
        archive.unlink(missing_ok=True)


def _wait_for_runtime(pid: int) -> None:
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
    return nodes.enter(pid, ["ctr", "--address", servers.SOCKET, "--namespace", "k8s.io", *arguments]).stdout


def load_archive(running: Sequence[Running], archive: Path) -> str:
    """Import an archive, which the nodes need not see, into each; returns the first runtime's output."""
    command = ["ctr", "--address", servers.SOCKET, "--namespace", "k8s.io", "images", "import", "-"]
    outputs = []
    for _, pid in running:
        with archive.open("rb") as stream:
            outputs.append(nodes.enter(pid, command, stream).stdout)
    return outputs[0]


def clone(node: Node, store: Path) -> None:
    """Copy the store to a new node."""
    target = node.file("var", "lib", "containerd")
    if target.is_dir():
        return
    work = node.file("var", "lib", "containerd.new")
    shutil.rmtree(work, ignore_errors=True)
    work.parent.mkdir(parents=True, exist_ok=True)
    source = store / "containerd"
    linked = subprocess.run(["cp", "-al", str(source), str(work)], capture_output=True, check=False)
    if linked.returncode:  # another file system
        shutil.rmtree(work, ignore_errors=True)
        subprocess.run(["cp", "-a", str(source), str(work)], check=True)
    # NOTE: containerd writes its databases in place. A hard link would corrupt the store of all clusters.
    for database in source.glob("*/*.db"):
        copy = work / database.relative_to(source)
        copy.unlink()
        shutil.copy2(database, copy)
    shutil.copyfile(store / _LAYERS, node.file(_LAYERS))
    os.replace(work, target)


def project_files() -> Iterator[tuple[Path, str]]:
    """The project's files, each with its path in the image."""
    root = checkout()
    # The folders below trainfleet that are links (infra, training, ...) are followed.
    for folder, subfolders, names in os.walk(root / "trainfleet", followlinks=True):
        subfolders[:] = sorted(set(subfolders) - {"__pycache__"})
        for path in (Path(folder) / name for name in sorted(names)):
            yield path, f"{rootfs.SITE_PACKAGES}/{path.relative_to(root)}"


def bytecode(target: str, source: bytes) -> tuple[str, bytes] | None:
    """The path and content of a compiled module in the image, whose user cannot write what Python compiles:
    every process would compile the project again. None on a machine with another Python than the image's, and
    for a file that does not compile.
    """
    if not target.endswith(".py") or sys.implementation.cache_tag != IMAGE_PYTHON:
        return None
    # The header is that of PEP 552, with the time and the size of the source as `_add` writes it.
    header = importlib.util.MAGIC_NUMBER + struct.pack("<III", 0, 0, len(source))
    try:
        code = compile(source, target, "exec", dont_inherit=True, optimize=0)
    except (SyntaxError, ValueError):
        return None
    return importlib.util.cache_from_source(target), header + marshal.dumps(code)


def load_project(running: Sequence[Running], store: Path, progress: Progress) -> bool:
    """Write the project as it is now into the training image of each node, on the base of a store; returns
    whether anything changed.
    """
    rows = (store / _LAYERS).read_text()
    # Read once: an editor may save a file while the archive is written.
    files = [(path, target, path.read_bytes()) for path, target in project_files()]
    digest = hashlib.sha256(rows.encode())
    for _, target, data in files:
        digest.update(target.encode() + b"\0" + data)
    outdated = [(node, pid) for node, pid in running if _stamp(node) != digest.hexdigest()]
    if not outdated:
        return False
    base = [oci.Layer(row["digest"], row["size"], _blob(store, row["digest"])) for row in json.loads(rows)]
    # Nodes that were created without the base, or with another.
    if lacking := [(node, pid) for node, pid in outdated if node.file(_LAYERS).read_text() != rows]:
        progress(f"importing {BASE}")
        load(lacking, BASE, base, SETTINGS)
        for node, _ in lacking:
            node.file(_LAYERS).write_text(rows)
    progress(f"writing the project into {LOCAL}")
    archive = outdated[0][0].cluster.file("project.tar")
    with tarfile.open(archive, "w") as tar:
        for path, target, data in files:
            _add(tar, target, data, executable=os.access(path, os.X_OK))
            if compiled := bytecode(target, data):
                _add(tar, *compiled, executable=False)
        for target, text in _metadata().items():
            _add(tar, target, text.encode(), executable="/bin/" in target)
    imported = [oci.Layer(each.digest, each.size) for each in base]
    try:
        load(outdated, LOCAL, [*imported, oci.layer(archive)], SETTINGS)
    finally:
        archive.unlink()
    for node, _ in outdated:
        node.file("project").write_text(digest.hexdigest())
    return True


def _stamp(node: Node) -> str:
    """The digest of what is in a node's training image."""
    file = node.file("project")
    return file.read_text() if file.exists() else ""


def _blob(store: Path, digest: str) -> Path:
    """The file of a layer in a store."""
    return store / "containerd" / "io.containerd.content.v1.content" / "blobs" / digest.replace(":", "/")


def _metadata() -> dict[str, str]:
    """The files that make the project an installed package: its metadata and its command."""
    folder = f"{rootfs.SITE_PACKAGES}/trainfleet-{__version__}.dist-info"
    script = f"#!{rootfs.ENVIRONMENT}/bin/python\nfrom trainfleet.cli import main\n\nmain()\n"
    return {
        f"{folder}/METADATA": f"Metadata-Version: 2.1\nName: trainfleet\nVersion: {__version__}\n",
        f"{folder}/entry_points.txt": "[console_scripts]\ntrainfleet = trainfleet.cli:main\n",
        f"{rootfs.ENVIRONMENT}/bin/trainfleet": script,
    }


def _add(tar: tarfile.TarFile, path: str, data: bytes, *, executable: bool) -> None:
    member = tarfile.TarInfo(path.lstrip("/"))
    member.size, member.mode = len(data), 0o755 if executable else 0o644
    tar.addfile(member, io.BytesIO(data))
