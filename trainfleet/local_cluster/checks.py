"""Checks that this machine can run a cluster. Reports everything that is missing at once, before anything is
created.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Set
from pathlib import Path

import psutil

from trainfleet.errors import MissingToolError, Problem, TrainfleetError
from trainfleet.local_cluster import cgroups, images, network_policies
from trainfleet.local_cluster.builds import missing
from trainfleet.local_cluster.pins import NETWORK_POLICIES, OPTIONAL, Program
from trainfleet.local_cluster.state import shadowed_by
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
    str(images.BUSYBOX): "busybox-static",
}
"""A program, and the Debian package that provides it."""
IMAGE_PACKAGES = {"debootstrap": "debootstrap", "g++": "g++"}
"""What building the training image needs in addition: debootstrap, and a compiler for the CUDA stubs."""
CAPABILITIES = {"CAP_SYS_ADMIN": 21, "CAP_NET_ADMIN": 12}
"""Capabilities that root may lack, with their bits (linux/capability.h)."""
MEMORY_GIB = 2.0
NODE_GIB = 0.25
"""The memory that each node beyond the first needs."""
DISK_GIB = {"kube": 6.0, "image": 12.0}
"""Disk space that building a part needs; a program that is not listed needs OTHER_GIB."""
OTHER_GIB = 1.0
SPARE_GIB = 4.0
"""Disk space that a running cluster needs."""
GIB = 1 << 30
PT_INTERP = 3
"""The type of the program header that names the dynamic loader (elf(5))."""
ALTERNATIVE = "name a cluster that you have: `--context NAME` of every command that launches"


def require_supported() -> None:
    """Check that this machine can run the cluster at all.

    Raises:
        MissingToolError: not Linux, not root, or without the capabilities.
    """
    if reason := unsupported_reason():
        raise MissingToolError(reason)


def unsupported_reason() -> str:
    """Why this machine cannot run a cluster, whatever is installed; empty where it can."""
    if sys.platform != "linux":
        return f"the built-in cluster runs on Linux, this is {sys.platform}: {ALTERNATIVE}"
    if os.geteuid() != 0:
        return (
            "the built-in cluster needs root (it creates namespaces and mounts): "
            f"run it with sudo, or {ALTERNATIVE}"
        )
    if lacking := [name for name, bit in CAPABILITIES.items() if not _capabilities() >> bit & 1]:
        return (
            "this root user cannot create namespaces, mounts and links "
            f"(a container without {', '.join(lacking)}): start it privileged, or {ALTERNATIVE}"
        )
    if closed := [str(folder) for folder in cgroups.hierarchies() if not os.access(folder, os.W_OK)]:
        return (
            f"control groups cannot be created in {closed[0]} (an unprivileged container?): "
            f"start it privileged, or {ALTERNATIVE}"
        )
    return ""


def missing_packages(image: bool = True) -> list[str]:
    """The Debian packages that are not installed."""
    needed = PACKAGES | IMAGE_PACKAGES if image else PACKAGES
    return sorted({package for program, package in needed.items() if not _is_installed(program)})


def apt_command(packages: list[str]) -> str:
    return f"apt-get install -y --no-install-recommends {' '.join(packages)}"


def require_resources(
    state_folder: Path, *, image: bool = True, optional: Set[Program] = OPTIONAL, nodes: int = 1
) -> None:
    """Check packages, memory, disk space, the kernel and the folders.

    Raises:
        MissingToolError: what is missing and how to provide it.
    """
    problems = []
    if packages := missing_packages(image):
        fix = f"{apt_command(packages)}, or `trainfleet cluster up --install`"
        problems.append(Problem("packages", f"not installed: {', '.join(packages)}", fix))
    available = _available_gib()
    needed = MEMORY_GIB + (nodes - 1) * NODE_GIB
    if available < needed:
        what = f"{available:.1f} GiB are free, the cluster needs {needed:g}"
        problems.append(Problem("memory", what, "stop other programs, or use a larger machine"))
    problems += _disk_problems(state_folder, disk_gib(image, optional))
    problems += [
        Problem(str(path), f"is hidden from the node, which has its own {mount}", "use another folder")
        for path in (cache_folder(), Path(sys.prefix), Path(__file__))
        if (mount := shadowed_by(path))
    ]
    if "overlay" not in Path("/proc/filesystems").read_text() and shutil.which("modprobe") is None:
        problems.append(Problem("kernel", "has no overlay file system", "load the module `overlay`"))
    if NETWORK_POLICIES in optional and not packages and (lacks := network_policies.missing_in_kernel()):
        fix = "load the module, or use --no-network-policies: policies are then stored without effect"
        problems.append(Problem("--network-policies", f"the kernel lacks {lacks}", fix))
    if problems:
        raise MissingToolError("this machine cannot run the cluster yet", problems)


def _disk_problems(state_folder: Path, needed_gib: float) -> list[Problem]:
    """The first of the two folders that lacks space: they are usually on one disk."""
    for variable, folder in {"XDG_STATE_HOME": state_folder, "XDG_CACHE_HOME": cache_folder()}.items():
        if (free := _free_gib(folder)) < needed_gib:
            what = f"{free:.0f} GiB are free, {needed_gib:.0f} are needed"
            return [Problem(str(folder), what, f"free some space, or set {variable} to another disk")]
    return []


def disk_gib(image: bool, optional: Set[Program]) -> float:
    """The disk space that the cluster needs, with what has to be built for it first."""
    programs = sum(DISK_GIB.get(program.name, OTHER_GIB) for program in missing(optional))
    unbuilt = image and not images.store_folder(image).is_dir()
    return SPARE_GIB + programs + (DISK_GIB["image"] if unbuilt else 0.0)


def install(packages: list[str]) -> None:
    """Install Debian packages.

    Raises:
        TrainfleetError: apt-get failed; with the end of its output.
    """
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update", "-qq"], apt_command(packages).split()):
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            raise MissingToolError(
                "the packages cannot be installed",
                [Problem("apt-get", "does not exist here", f"install {', '.join(packages)}")],
            ) from error
        if done.returncode:
            output = (done.stderr or done.stdout).strip().splitlines()[-2:]
            raise TrainfleetError(
                "the packages cannot be installed", [Problem(" ".join(command[:2]), " / ".join(output))]
            )


def _is_installed(program: str) -> bool:
    if program == str(images.BUSYBOX):  # Debian's `busybox` is dynamic, at the same path
        return images.BUSYBOX.exists() and is_static(images.BUSYBOX)
    if program.startswith("/"):
        return Path(program).exists()
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is not None


def is_static(program: Path) -> bool:
    """Whether a file is an ELF executable that starts without a dynamic loader."""
    data = program.read_bytes()
    if data[:4] != b"\x7fELF":
        return False
    order = ">" if data[5:6] == b"\x02" else "<"
    # The table of program headers: its place in the file, then the size and the number of its rows.
    table = "32xQ14xHH" if data[4:5] == b"\x02" else "28xI10xHH"
    try:
        start, size, count = struct.unpack_from(order + table, data)
        types = [struct.unpack_from(f"{order}I", data, start + size * row)[0] for row in range(count)]
    except struct.error:  # cut off
        return False
    return PT_INTERP not in types


def _capabilities() -> int:
    """This process's effective capabilities, one bit each (capabilities(7))."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1], 16) for line in lines if line.startswith("CapEff:"))


def _available_gib() -> float:
    return float(psutil.virtual_memory().available) / GIB


def _free_gib(folder: Path) -> float:
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free / GIB
