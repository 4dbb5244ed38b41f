"""Makes the training image's layers out of Debian packages and the project's locks, without a registry and
without Docker.

Three tar files: the system (debootstrap), the Python packages of images/requirements.lock, and SkyPilot's
runtime; each is kept
until what it is made of changes. The project itself is a fourth, made anew whenever its files change
(images.py). Runs as root;
everything is mounted in a namespace of its own. Easy to get wrong: an environment is made inside the tree, by
chroot, because its
scripts hold the path that they will have.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainfleet.errors import MissingToolError, Problem, TrainfleetError
from trainfleet.local_cluster import cuda_stubs
from trainfleet.local_cluster.lock_file import blocks, pip_index
from trainfleet.local_cluster.node import GUARD

Progress = Callable[[str], None]
SUITE = "bookworm"
USER, UID, HOME = "ray", 1000, "/home/ray"
ENVIRONMENT = "/opt/trainfleet"
RUNTIME = f"{HOME}/skypilot-runtime"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CUDA = ("nvidia-", "cuda-", "triton")
_INDEX_SETTINGS = re.compile(r"(UV_(DEFAULT_)?INDEX.*|UV_.*CERT.*|SSL_CERT_FILE|(https?|no|all)_proxy)", re.I)


def packages(images: Path) -> list[str]:
    """The Debian packages that the image names."""
    return [line for line in (images / "debian.txt").read_text().split() if line]


@dataclass(frozen=True)
class Stage:
    """One layer: what it is made of (a file of images/, the code that makes it) and what of the tree it
    holds.
    """

    file: str
    folder: str
    says: str
    make: Callable[[Path, Path, Path], None]
    code: tuple[Any, ...]

    def key(self, images: Path) -> str:
        """What tells this layer from another; a change of the system changes all of them."""
        digest = hashlib.sha256(
            f"{platform.machine()} {SUITE} {USER} {UID} {HOME} {ENVIRONMENT} {RUNTIME}".encode()
        )
        digest.update((images / self.file).read_bytes())
        for part in (self.make, *self.code):
            digest.update(inspect.getsource(part).encode())
        if self is not STAGES[0]:
            digest.update(STAGES[0].key(images).encode())
        return digest.hexdigest()[:16]


def make(images: Path, work: Path, progress: Progress, held: Mapping[str, Path]) -> list[tuple[str, Path]]:
    """Make in a folder the layers that are not held; returns each one's key and tar file from the lowest up.

    Raises:
        TrainfleetError: a step failed; with its last words.
    """
    root = work / "root"
    layers: list[tuple[str, Path]] = []
    for stage in STAGES:
        key = stage.key(images)
        if key not in held:
            progress(f"image: {stage.says}")
            if layers and not root.exists():
                root.mkdir()
                _run(["tar", "--numeric-owner", "-C", str(root), "-xpf", str(layers[0][1])], "tar")
            stage.make(images, root, work)
        layers.append((key, held.get(key) or _tar(root, work / f"{key}.tar", [f".{stage.folder}"])))
    shutil.rmtree(root, ignore_errors=True)
    return layers


def mirror() -> list[str]:
    """The Debian mirror that this machine uses, as debootstrap's last argument; nothing where none is found,
    and debootstrap knows one.
    """
    for path in [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]:
        if path.is_file() and (
            found := re.search(
                r"^(?:URIs:|deb(?:\s+\[.*?\])?)\s+(https?://\S*/debian/?)(?:\s|$)", path.read_text(), re.M
            )
        ):
            return [found.group(1)]
    return []


def _install_system(images: Path, root: Path, _work: Path) -> None:
    """Debian, the user and what it may."""
    _run(
        [
            "debootstrap",
            "--variant=minbase",
            f"--include={','.join(packages(images))}",
            SUITE,
            str(root),
            *mirror(),
        ],
        "debootstrap",
    )
    chroot = ["chroot", str(root)]
    _run([*chroot, "useradd", "--uid", str(UID), "--create-home", "--shell", "/bin/bash", USER], "useradd")
    (root / "etc" / "sudoers.d" / USER).write_text(f"{USER} ALL=(ALL) NOPASSWD:ALL\n")
    (root / "etc" / "resolv.conf").write_text("")
    for folder in ("var/cache/apt/archives", "var/lib/apt/lists"):
        for path in sorted((root / folder).rglob("*"), reverse=True):
            if path.is_file():
                path.unlink()


def _install_packages(images: Path, root: Path, work: Path) -> None:
    lock = (images / "requirements.lock").read_text()
    cuda, rest = split(lock)
    (work / "cpu.txt").write_text(rest)
    (work / "cuda.txt").write_text(cuda)
    site = f"{ENVIRONMENT}/lib/python3.11/site-packages"
    _in_root(
        root,
        work,
        f"uv venv --quiet --python /usr/bin/python3 {ENVIRONMENT}\n"
        f"uv pip install --quiet --compile-bytecode --python {ENVIRONMENT}/bin/python --no-deps --require-hashes -r /mnt/work/cpu.txt",
    )
    # The real libraries are only looked at: linked out of uv's cache, and gone with the folder.
    target = [
        "--target",
        str(work / "cuda"),
        "--python",
        str(root / "usr/bin/python3"),
        "--no-deps",
        "--require-hashes",
    ]
    _run(
        [uv(), "pip", "install", "--quiet", *target, "-r", str(work / "cuda.txt")], "uv", os.environ | index()
    )
    torch = root / site.lstrip("/") / "torch"
    cuda_stubs.replace(work / "cuda" / "nvidia", torch, torch.parent / "nvidia", work)
    shutil.rmtree(work / "cuda")


def split(lock: str) -> tuple[str, str]:
    """A lock in two: CUDA's packages, and the rest."""
    found = blocks(lock)
    cuda = {name for name in found if name.startswith(_CUDA)}
    return "".join(found[name] for name in sorted(cuda)), "".join(
        block for name, block in found.items() if name not in cuda
    )


def _install_runtime(images: Path, root: Path, work: Path) -> None:
    shutil.copyfile(images / "skypilot.lock", work / "skypilot.txt")
    there = root / f"{HOME}/.local/bin".lstrip("/")
    there.mkdir(parents=True)
    shutil.copy2(uv(), there / "uv")
    _in_root(
        root,
        work,
        f"uv venv --quiet --seed --python /usr/bin/python3 {RUNTIME}\n"
        f"uv pip install --quiet --compile-bytecode --python {RUNTIME}/bin/python --require-hashes -r /mnt/work/skypilot.txt\n"
        f"chown -R {UID}:{UID} {HOME}",
    )


def _in_root(root: Path, work: Path, script: str) -> None:
    """Run a script in the tree, with uv, its cache, the resolver and the certificates of this machine lent
    for the time being.
    """
    cache = subprocess.run([uv(), "cache", "dir"], capture_output=True, text=True, check=True).stdout.strip()
    Path(cache).mkdir(parents=True, exist_ok=True)
    for folder in ("mnt/work", "mnt/uv"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "mnt" / "uv-program").touch()
    lent = {
        "/proc": "proc",
        "/dev": "dev",
        "/etc/resolv.conf": "etc/resolv.conf",
        "/etc/ssl/certs": "etc/ssl/certs",
    }
    lent |= {str(work): "mnt/work", cache: "mnt/uv", uv(): "mnt/uv-program"}
    lines = [f"mount --rbind '{source}' '{root / place}'" for source, place in lent.items()]
    settings = {
        "HOME": "/root",
        "PATH": PATH,
        "UV_CACHE_DIR": "/mnt/uv",
        "UV_LINK_MODE": "copy",
        "UV_PYTHON_DOWNLOADS": "never",
        "LANG": "C.UTF-8",
    } | index()
    (work / "inside.sh").write_text(f'set -eu\nuv() {{ /mnt/uv-program "$@"; }}\n{script}\n')
    _run(
        ["sh", "-euc", "\n".join([*lines, f"exec chroot '{root}' /bin/sh /mnt/work/inside.sh"])],
        "the image's Python packages",
        settings,
    )
    (root / "mnt" / "uv-program").unlink()
    for folder in ("mnt/work", "mnt/uv"):
        (root / folder).rmdir()


STAGES = (
    Stage(
        "debian.txt", "", "the system, from Debian packages (1 to 4 minutes)", _install_system, (packages,)
    ),
    Stage(
        "requirements.lock",
        ENVIRONMENT,
        "Python packages (1 to 3 minutes)",
        _install_packages,
        (split, cuda_stubs, _in_root),
    ),
    Stage("skypilot.lock", HOME, "SkyPilot's runtime (1 minute)", _install_runtime, (_in_root,)),
)


def uv() -> str:
    """The uv of this environment, else the one on PATH.

    Raises:
        MissingToolError: there is none.
    """
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.is_file() else shutil.which("uv")
    if found is None:
        raise MissingToolError("the image cannot be made", [Problem("uv", "is not here", "make setup")])
    return found


def index() -> dict[str, str]:
    """The package index that this machine is told to use, in uv's words."""
    return {name: value for name, value in os.environ.items() if _INDEX_SETTINGS.fullmatch(name)} | pip_index(
        Path(sys.executable)
    )


def _tar(root: Path, target: Path, what: Sequence[str]) -> Path:
    _run(["tar", "--numeric-owner", "-C", str(root), "-cf", str(target), *what], "tar")
    return target


def _run(command: Sequence[str], what: str, environment: dict[str, str] | None = None) -> None:
    done = subprocess.run([*GUARD, *command], capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-4:]
        raise TrainfleetError(
            "the training image cannot be made",
            [Problem(what, " / ".join(said) or f"exit code {done.returncode}")],
        )
