"""Builds the training image's layers from Debian packages and the project's locks, without a registry and
without Docker.

Three tar files: the system (debootstrap), the Python packages of images/requirements.lock, and SkyPilot's
runtime. Each is cached until its inputs change. images.py adds the project as a fourth. Needs root.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainfleet.errors import MissingToolError, Problem, TrainfleetError
from trainfleet.local_cluster import cuda_stubs
from trainfleet.local_cluster.lock_file import blocks, pip_index
from trainfleet.local_cluster.node import ISOLATED

Progress = Callable[[str], None]
SUITE = "bookworm"
USER, UID, HOME = "ray", 1000, "/home/ray"
ENVIRONMENT = "/opt/trainfleet"
SITE_PACKAGES = f"{ENVIRONMENT}/lib/python3.11/site-packages"
RUNTIME = f"{HOME}/skypilot-runtime"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CUDA = ("nvidia-", "cuda-", "triton")
_INDEX_SETTINGS = re.compile(r"(UV_(DEFAULT_)?INDEX.*|UV_.*CERT.*|SSL_CERT_FILE|(https?|no|all)_proxy)", re.I)


@dataclass(frozen=True)
class Stage:
    """One layer: the file of images/ that pins its contents, and the folder of the tree that it holds."""

    file: str
    folder: str
    description: str
    build: Callable[[Path, Path, Path], None]
    version: int
    """Increase it when `build` changes what is in the layer: cached layers of other versions are ignored."""

    def key(self, images: Path) -> str:
        """The cache key of the layer; a change of the system changes the keys of all layers."""
        settings = f"{platform.machine()} {SUITE} {USER} {UID} {HOME} {ENVIRONMENT} {RUNTIME} {self.version}"
        digest = hashlib.sha256(settings.encode())
        digest.update((images / self.file).read_bytes())
        if self is not STAGES[0]:
            digest.update(STAGES[0].key(images).encode())
        return digest.hexdigest()[:16]


def debian_packages(images: Path) -> list[str]:
    """The Debian packages that the image names."""
    return (images / "debian.txt").read_text().split()


def build_layers(
    images: Path, work: Path, progress: Progress, cached: Mapping[str, Path]
) -> list[tuple[str, Path]]:
    """Build the layers that are not cached; returns the key and tar file of each, lowest first.

    Raises:
        TrainfleetError: a step failed; with the end of its output.
    """
    root = work / "root"
    layers: list[tuple[str, Path]] = []
    for stage in STAGES:
        key = stage.key(images)
        if key not in cached:
            progress(f"image: {stage.description}")
            if layers and not root.exists():
                root.mkdir()
                _run(["tar", "--numeric-owner", "-C", str(root), "-xpf", str(layers[0][1])], "tar")
            stage.build(images, root, work)
        layers.append((key, cached.get(key) or _tar(root, work / f"{key}.tar", f".{stage.folder}")))
    shutil.rmtree(root, ignore_errors=True)
    return layers


def debian_mirror() -> list[str]:
    """The Debian mirror of this machine as debootstrap's last argument; empty for debootstrap's default."""
    line = re.compile(r"^(?:URIs:|deb(?:\s+\[.*?\])?)\s+(https?://\S*/debian/?)(?:\s|$)", re.M)
    for path in [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]:
        if path.is_file() and (found := line.search(path.read_text())):
            return [found.group(1)]
    return []


def _install_system(images: Path, root: Path, _work: Path) -> None:
    """Install Debian, and create the user with sudo."""
    include = f"--include={','.join(debian_packages(images))}"
    _run(["debootstrap", "--variant=minbase", include, SUITE, str(root), *debian_mirror()], "debootstrap")
    useradd = ["useradd", "--uid", str(UID), "--create-home", "--shell", "/bin/bash", USER]
    _run(["chroot", str(root), *useradd], "useradd")
    (root / "etc" / "sudoers.d" / USER).write_text(f"{USER} ALL=(ALL) NOPASSWD:ALL\n")
    (root / "etc" / "resolv.conf").write_text("")
    for folder in ("var/cache/apt/archives", "var/lib/apt/lists"):
        for path in sorted((root / folder).rglob("*"), reverse=True):
            if path.is_file():
                path.unlink()


def _install_packages(images: Path, root: Path, work: Path) -> None:
    cuda, rest = split_lock((images / "requirements.lock").read_text())
    (work / "cpu.txt").write_text(rest)
    (work / "cuda.txt").write_text(cuda)
    # The environment is created by chroot: its scripts contain the path of their interpreter.
    install = f"uv pip install --quiet --compile-bytecode --python {ENVIRONMENT}/bin/python --no-deps"
    _run_in_root(
        root,
        work,
        f"uv venv --quiet --python /usr/bin/python3 {ENVIRONMENT}\n"
        f"{install} --require-hashes -r /mnt/work/cpu.txt",
    )
    # The real CUDA libraries are only read, to build stubs of them.
    command = [find_uv(), "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
    command += ["--target", str(work / "cuda"), "--python", str(root / "usr/bin/python3")]
    _run([*command, "-r", str(work / "cuda.txt")], "uv", os.environ | package_index())
    torch = root / SITE_PACKAGES.lstrip("/") / "torch"
    cuda_stubs.install_stubs(work / "cuda" / "nvidia", torch, torch.parent / "nvidia", work)
    shutil.rmtree(work / "cuda")


def split_lock(lock: str) -> tuple[str, str]:
    """Split a lock into CUDA's packages and the rest."""
    found = blocks(lock)
    cuda = {name for name in found if name.startswith(_CUDA)}
    rest = (block for name, block in found.items() if name not in cuda)
    return "".join(found[name] for name in sorted(cuda)), "".join(rest)


def _install_runtime(images: Path, root: Path, work: Path) -> None:
    shutil.copyfile(images / "skypilot.lock", work / "skypilot.txt")
    programs = root / f"{HOME}/.local/bin".lstrip("/")
    programs.mkdir(parents=True)
    shutil.copy2(find_uv(), programs / "uv")
    install = f"uv pip install --quiet --compile-bytecode --python {RUNTIME}/bin/python --require-hashes"
    _run_in_root(
        root,
        work,
        f"uv venv --quiet --seed --python /usr/bin/python3 {RUNTIME}\n"
        f"{install} -r /mnt/work/skypilot.txt\n"
        f"chown -R {UID}:{UID} {HOME}",
    )


def _run_in_root(root: Path, work: Path, script: str) -> None:
    """Run a script in the tree, with this machine's uv, its cache, resolver and certificates mounted."""
    uv = find_uv()
    cache = subprocess.run([uv, "cache", "dir"], capture_output=True, text=True, check=True).stdout.strip()
    Path(cache).mkdir(parents=True, exist_ok=True)
    for folder in ("mnt/work", "mnt/uv"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "mnt" / "uv-program").touch()
    mounts = {f"/{path}": path for path in ("proc", "dev", "etc/resolv.conf", "etc/ssl/certs")}
    mounts |= {str(work): "mnt/work", cache: "mnt/uv", uv: "mnt/uv-program"}
    lines = [f"mount --rbind '{source}' '{root / path}'" for source, path in mounts.items()]
    environment = {
        "HOME": "/root",
        "PATH": PATH,
        "UV_CACHE_DIR": "/mnt/uv",
        "UV_LINK_MODE": "copy",
        "UV_PYTHON_DOWNLOADS": "never",
        "LANG": "C.UTF-8",
    }
    (work / "inside.sh").write_text(f'set -eu\nuv() {{ /mnt/uv-program "$@"; }}\n{script}\n')
    lines += [f"exec chroot '{root}' /bin/sh /mnt/work/inside.sh"]
    _run(["sh", "-euc", "\n".join(lines)], "the image's Python packages", environment | package_index())
    (root / "mnt" / "uv-program").unlink()
    for folder in ("mnt/work", "mnt/uv"):
        (root / folder).rmdir()


STAGES = (
    Stage("debian.txt", "", "the system, from Debian packages (1 to 4 minutes)", _install_system, 1),
    Stage("requirements.lock", ENVIRONMENT, "Python packages (1 to 3 minutes)", _install_packages, 1),
    Stage("skypilot.lock", HOME, "SkyPilot's runtime (1 minute)", _install_runtime, 1),
)


def find_uv() -> str:
    """The uv of this environment, else the one on PATH.

    Raises:
        MissingToolError: neither exists.
    """
    own = Path(sys.executable).with_name("uv")
    found = str(own) if own.is_file() else shutil.which("uv")
    if found is None:
        raise MissingToolError("the image cannot be built", [Problem("uv", "is not installed", "make setup")])
    return found


def package_index() -> dict[str, str]:
    """The package index that this machine is configured for, as variables for uv."""
    own = {name: value for name, value in os.environ.items() if _INDEX_SETTINGS.fullmatch(name)}
    return own | pip_index(Path(sys.executable))


def _tar(root: Path, target: Path, folder: str) -> Path:
    _run(["tar", "--numeric-owner", "-C", str(root), "-cf", str(target), folder], "tar")
    return target


def _run(command: Sequence[str], what: str, environment: dict[str, str] | None = None) -> None:
    done = subprocess.run([*ISOLATED, *command], capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        output = (done.stderr.strip() or done.stdout.strip()).splitlines()[-4:]
        raise TrainfleetError(
            "the training image cannot be built",
            [Problem(what, " / ".join(output) or f"exit code {done.returncode}")],
        )
