"""The user's code of a run: a tar file named by its digest, which each process of the run unpacks and uses.

`launch --code DIR` packs a folder and stores it with the run (`trainfleet.training.launch.code`). Launchers
pass on its URL (CODE) and nothing else: each process fetches it as it fetches checkpoints. This works in the
same way in pods, on hosts and without Ray, after a restart, and on Ray clusters that outlive the run.

Ray's `working_dir` does not fit. For a URL, nodes need smart_open and a client library of each cloud
(ray/_private/runtime_env/protocol.py), which do not know the store's endpoint and CA; what is uploaded to a
head is lost with it. SkyPilot's `workdir` does not fit either: the pods of a managed job get it through
another bucket (sky/utils/controller_utils.py), which the launcher's cloud account must be able to create.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib
import io
import os
import shutil
import stat
import sys
import tarfile
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from trainfleet.errors import Problem, TrainfleetError
from trainfleet.training.stores import open_store

CODE = "TRAINFLEET_CODE"
"""URL or path of a run's code: an archive, or a folder of this machine that is used as it is."""
CODE_FOLDER = "TRAINFLEET_CODE_FOLDER"
"""Where a local launch has the code unpacked; it is removed when the launch ends."""
CODE_COPIES = "TRAINFLEET_CODE_COPIES"
"""A folder that may hold a copy of the archive, for machines that cannot read the run's storage."""
STORED = "code"
"""The folder of the archives in a run's folder or store."""
SUFFIX = ".tar.gz"
MAX_BYTES = 100 * 2**20
"""Of all files of an archive. Every rank of a run reads it at each start."""
MAX_FILES = 20_000
_MAX_TAR_BYTES = MAX_BYTES + MAX_FILES * 3 * tarfile.BLOCKSIZE + tarfile.RECORDSIZE


@dataclass(frozen=True)
class CodeFile:
    """A file of an archive."""

    data: bytes
    executable: bool = False


def archive_path(digest: str) -> str:
    """The path of an archive in a run's folder or store."""
    return f"{STORED}/{digest}{SUFFIX}"


def digest_of(url: str) -> str:
    """The digest of the archive at a URL; empty for a folder."""
    name = url.rpartition("/")[2]
    return name.removesuffix(SUFFIX) if name.endswith(SUFFIX) else ""


def use(url: str | None, folder: str | None = None) -> Path | None:
    """Put a run's code first on the import path of this process; returns its folder.

    Args:
        url: the value of CODE; without one, nothing happens.
        folder: where to unpack it; by default a folder of this user in the temporary folder, which all
            processes of this machine share.

    Raises:
        TrainfleetError: it cannot be read, differs from its digest, or cannot be written here.
    """
    if not url:
        return None
    if _used.get("url") != url:
        found = str(_unpacked(url, digest_of(url), Path(folder) if folder else _shared_folder()))
        sys.path[:] = [found, *(each for each in sys.path if each not in (found, _used.get("found")))]
        importlib.invalidate_caches()
        _used.clear()
        _used.update({"url": url, "found": found} | ({"folder": folder} if folder else {}))
    return Path(_used["found"])


def current() -> tuple[str | None, str | None]:
    """The arguments of `use` with which another process of this machine uses the same code."""
    return _used.get("url"), _used.get("folder")


def pack(files: dict[str, CodeFile]) -> tuple[str, bytes]:
    """The digest and the content of an archive. Equal files have equal digests on every machine.

    The digest is that of the tar file, because versions of zlib compress differently.
    """
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, file in sorted(files.items()):
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(file.data), 0o755 if file.executable else 0o644
            archive.addfile(member, io.BytesIO(file.data))
    compress = zlib.compressobj(wbits=31)
    return (
        hashlib.sha256(plain.getvalue()).hexdigest(),
        compress.compress(plain.getvalue()) + compress.flush(),
    )


def read(data: bytes, digest: str, where: str = "") -> dict[str, CodeFile]:
    """The files of an archive.

    NOTE: the files are read one by one and nothing but a regular file below the folder is accepted.
    `extractall(filter="data")` needs Python 3.11.4, and Debian 12's is 3.11.2.

    Raises:
        TrainfleetError: the archive is incomplete, or is not the one that the digest names.
    """
    stream = zlib.decompressobj(wbits=31)
    try:
        plain = stream.decompress(data, _MAX_TAR_BYTES)
    except zlib.error as error:
        raise _damaged(where, f"cannot be decompressed: {error}") from error
    if not stream.eof:
        raise _damaged(where, "is incomplete or too large")
    if (found := hashlib.sha256(plain).hexdigest()) != digest:
        raise _damaged(where, f"has the digest {found[:12]}, not {digest[:12]}")
    files = {}
    with tarfile.open(fileobj=io.BytesIO(plain), mode="r:") as archive:
        for member in archive:
            path = PurePosixPath(member.name)
            content = archive.extractfile(member) if member.isreg() else None
            if content is None or path.is_absolute() or ".." in path.parts or not path.parts:
                raise _damaged(where, f"holds `{member.name}`, which is not a file below its folder")
            files[str(path)] = CodeFile(content.read(), bool(member.mode & stat.S_IXUSR))
    return files


def fetch(url: str) -> dict[str, CodeFile]:
    """The files of the archive at a URL.

    Raises:
        TrainfleetError: it cannot be read, or differs from its digest.
    """
    place, _, name = url.rpartition("/")
    copy = Path(os.environ.get(CODE_COPIES) or "").expanduser() / name
    data = copy.read_bytes() if CODE_COPIES in os.environ and copy.is_file() else open_store(place).read(name)
    return read(data, digest_of(url), url)


_used: dict[str, str] = {}
_locks: list[IO[bytes]] = []
"""Held until this process ends: they keep its code from being removed."""


def _unpacked(url: str, digest: str, root: Path) -> Path:
    """The folder with the code, unpacked by the first process that needs it."""
    if not digest:
        return Path(url)
    try:
        _make_private(root)
        with (root / ".lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            target = root / digest
            if not target.is_dir():
                _write(fetch(url), target)
            in_use = (root / f"{digest}.lock").open("ab")
            fcntl.flock(in_use, fcntl.LOCK_SH)
            _locks.append(in_use)
            _remove_unused(root)
    except OSError as error:
        problem = Problem(str(root), error.strerror or str(error), "TMPDIR names another temporary folder")
        raise TrainfleetError("cannot unpack the run's code", [problem]) from error
    return target


def _shared_folder() -> Path:
    return Path(tempfile.gettempdir()) / f"trainfleet-code-{os.getuid()}"


def _make_private(root: Path) -> None:
    """Create the folder. On a shared host another user could have prepared one with other code."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = root.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        problem = Problem(str(root), "can be written by another user", "remove it, or set TMPDIR")
        raise TrainfleetError("cannot unpack the run's code", [problem])


def _write(files: dict[str, CodeFile], target: Path) -> None:
    """Write all files, then give the folder its name: a folder with this name is complete."""
    part = Path(tempfile.mkdtemp(dir=target.parent, prefix=".part-"))
    try:
        for path, file in files.items():
            written = part / path
            written.parent.mkdir(parents=True, exist_ok=True)
            written.write_bytes(file.data)
            written.chmod(0o755 if file.executable else 0o644)
        part.rename(target)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def _remove_unused(root: Path) -> None:
    """Remove the code of other runs that no process uses, and parts of processes that were killed.

    Only under the folder's lock, so nobody starts to use one meanwhile.
    """
    for part in root.glob(".part-*"):
        shutil.rmtree(part, ignore_errors=True)
    for name in root.glob("*.lock"):
        if name.name == ".lock":
            continue
        with name.open("ab") as lock, contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(root / name.stem, ignore_errors=True)
            name.unlink()


def _damaged(where: str, what: str) -> TrainfleetError:
    return TrainfleetError("the run's code is damaged", [Problem(where, what, "launch the recipe again")])
