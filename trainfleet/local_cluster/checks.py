"""What this machine lacks for a cluster, all at once and before anything is made."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from trainfleet.errors import MissingToolError, Problem, TrainfleetError
from trainfleet.local_cluster import cgroups, images
from trainfleet.local_cluster.builds import missing
from trainfleet.local_cluster.state import hidden_by
from trainfleet.toolchain import cache_folder

PACKAGES = {
    "containerd": "containerd",
    "runc": "runc",
    "/usr/lib/cni/ptp": "containernetworking-plugins",
    "etcd": "etcd-server",
    "iptables": "iptables",
    "nft": "nftables",
    "ip": "iproute2",
    "openssl": "openssl",
    "nsenter": "util-linux",
    "mount": "mount",
    "/bin/busybox": "busybox-static",
}
"""A program, and the Debian package that brings it."""
IMAGE_PACKAGES = {"debootstrap": "debootstrap", "g++": "g++"}
"""What making the training image takes besides: the system, and a compiler for the stand-ins."""
RIGHTS = {"CAP_SYS_ADMIN": 21, "CAP_NET_ADMIN": 12}
"""What root may be without: the bit of each right (linux/capability.h)."""
MEMORY_GIB = 2.0
DISK_GIB = {"kube": 6.0, "image": 12.0}
"""What making a part takes while it is made; of the programs that are not named OTHER_GIB each."""
OTHER_GIB = 1.0
SPARE_GIB = 4.0
"""What a cluster wants for itself."""
GIB = 1 << 30
ELSEWHERE = "name a cluster that you have: `--context NAME` of every command that launches"


def machine() -> None:
    """Say whether this machine can run the cluster at all.

    Raises:
        MissingToolError: another system than Linux, or not root.
    """
    if reason := refused():
        raise MissingToolError(reason)


def refused() -> str:
    """Why no cluster runs here, whatever is installed; nothing where one can."""
    if sys.platform != "linux":
        return f"the built-in cluster runs on Linux, this is {sys.platform}: {ELSEWHERE}"
    if os.geteuid() != 0:
        return f"the built-in cluster needs root (it makes namespaces and mounts): run it with sudo, or {ELSEWHERE}"
    if held_back := [name for name, bit in RIGHTS.items() if not _rights() >> bit & 1]:
        return f"this root may not make namespaces, mounts and links (a container without {', '.join(held_back)}): start it privileged, or {ELSEWHERE}"
    if closed := [str(folder) for folder in cgroups.hierarchies() if not os.access(folder, os.W_OK)]:
        return f"control groups cannot be made in {closed[0]} (a container that is not privileged?): start it privileged, or {ELSEWHERE}"
    return ""


def absent(image: bool = True) -> list[str]:
    """The Debian packages that are missing."""
    wanted = PACKAGES | IMAGE_PACKAGES if image else PACKAGES
    return sorted({package for program, package in wanted.items() if not _here(program)})


def apt_line(packages: list[str]) -> str:
    return f"apt-get install -y --no-install-recommends {' '.join(packages)}"


def resources(state_folder: Path, *, image: bool = True, simulated: bool = True) -> None:
    """Look at packages, memory, disk and places.

    Raises:
        MissingToolError: what is missing and what to do about it.
    """
    problems = []
    if packages := absent(image):
        problems.append(
            Problem(
                "packages",
                f"not here: {', '.join(packages)}",
                f"{apt_line(packages)}, or `trainfleet cluster up --install`",
            )
        )
    available = _available_gib()
    if available < MEMORY_GIB:
        problems.append(
            Problem(
                "memory",
                f"{available:.1f} GiB are free, the cluster needs {MEMORY_GIB:.0f}",
                "end something, or use a larger machine",
            )
        )
    needed = disk_gib(image, simulated)
    for what, folder in {"state": state_folder, "cache": cache_folder()}.items():
        if (free := _free_gib(folder)) < needed:
            variable = "XDG_STATE_HOME" if what == "state" else "XDG_CACHE_HOME"
            problems.append(
                Problem(
                    str(folder),
                    f"{free:.0f} GiB are free, {needed:.0f} are needed",
                    f"free some, or set {variable} to another disk",
                )
            )
            break
    problems += [
        Problem(
            str(path),
            f"cannot be seen by the node, which has a {place} of its own",
            "put it into another folder",
        )
        for path in (cache_folder(), Path(sys.prefix), Path(__file__))
        if (place := hidden_by(path))
    ]
    if "overlay" not in Path("/proc/filesystems").read_text() and shutil.which("modprobe") is None:
        problems.append(Problem("kernel", "knows no overlay file system", "load the module `overlay`"))
    if problems:
        raise MissingToolError("this machine cannot run the cluster yet", problems)


def disk_gib(image: bool, simulated: bool) -> float:
    """What the cluster needs of the disk, with what has to be made for it first."""
    programs = sum(DISK_GIB.get(program.name, OTHER_GIB) for program in missing(simulated))
    return SPARE_GIB + programs + (DISK_GIB["image"] if image and not images.store(image).is_dir() else 0.0)


def install(packages: list[str]) -> None:
    """Install Debian packages.

    Raises:
        TrainfleetError: apt-get refused; with its last words.
    """
    import subprocess

    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update", "-qq"], apt_line(packages).split()):
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            raise MissingToolError(
                "the packages cannot be installed",
                [Problem("apt-get", "is not here", f"install {', '.join(packages)}")],
            ) from error
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines()[-2:]
            raise TrainfleetError(
                "the packages cannot be installed", [Problem(" ".join(command[:2]), " / ".join(said))]
            )


def _here(program: str) -> bool:
    return (
        Path(program).exists()
        if program.startswith("/")
        else shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is not None
    )


def _rights() -> int:
    """This process's effective rights, a bit each (capabilities(7))."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1], 16) for line in lines if line.startswith("CapEff:"))


def _available_gib() -> float:
    import psutil

    return float(psutil.virtual_memory().available) / GIB


def _free_gib(folder: Path) -> float:
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free / GIB
