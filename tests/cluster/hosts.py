"""Hosts for the tests of `--on ray-up`: namespaces with their own address, processes, /tmp and SSH server.

sshd comes from an unpacked Debian package, since installing it would start a server on this machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.debian import unpacked

NETWORK = "10.219.77"
BRIDGE = "tf-hosts"
PACKAGES = ("openssh-server", "libwrap0")
INIT = """
set -e
while ! ip link show eth0 >/dev/null 2>&1; do sleep 0.05; done
ip link set lo up; ip address add {address}/24 dev eth0; ip link set eth0 up
hostname {name}
mount --bind {folder}/passwd /etc/passwd
mount --bind {folder}/shadow /etc/shadow
mount -t tmpfs tmpfs /run; mkdir -p /run/sshd /run/old /run/home
mount --bind {folder}/home /run/home
mount --rbind /tmp /run/old
mount -t tmpfs -o mode=1777 tmpfs /tmp
for kept in {kept}; do mkdir -p $kept; mount --bind /run/old/${{kept#/tmp/}} $kept; done
export LD_LIBRARY_PATH=/run/home/.sshd/usr/lib/{triplet}:/run/home/.sshd/lib/{triplet}
exec /run/home/.sshd/usr/sbin/sshd -D -e -f /run/home/.sshd/config
"""
CONFIG = """
Port 22
HostKey /run/home/.sshd/key
AuthorizedKeysFile /run/home/.sshd/authorized
PermitRootLogin prohibit-password
PasswordAuthentication no
UsePAM no
StrictModes no
PidFile none
MaxStartups 100
MaxSessions 100
"""


@dataclass(frozen=True)
class Host:
    """One host. `process` is its parent process on this machine; the first child is its init."""

    address: str
    process: subprocess.Popen[bytes]
    folder: Path

    def programs(self) -> list[str]:
        """The command lines of its processes."""
        space = Path(f"/proc/{_init_of(self.process)}/ns/pid").readlink()
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and (entry / "ns" / "pid").readlink() == space:
                    found.append((entry / "cmdline").read_text().replace("\0", " "))
        return found

    def home(self) -> set[str]:
        """The names in its user's home folder, except those that the host starts with."""
        return {path.name for path in (self.folder / "home").iterdir()} - {".sshd", ".bashrc", ".profile"}

    def tmp(self) -> set[str]:
        """The names in its /tmp."""
        return {path.name for path in Path(f"/proc/{_init_of(self.process)}/root/tmp").iterdir()}


@dataclass(frozen=True)
class Hosts:
    """The hosts, and the SSH key that they accept."""

    here: str
    """This machine's address in their network."""
    key: Path
    each: tuple[Host, ...]


@contextlib.contextmanager
def hosts(count: int, folder: Path) -> Iterator[Hosts]:
    """Run `count` hosts until the end of the block. Skips the test where they cannot run."""
    server = _sshd(folder)
    key = folder / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    _ip("link", "add", BRIDGE, "type", "bridge")
    made: list[Host] = []
    try:
        _ip("address", "add", f"{NETWORK}.1/24", "dev", BRIDGE)
        _ip("link", "set", BRIDGE, "up")
        for number in range(count):
            made += [_host(number, folder, server, key)]
        for host in made:
            _answers(host)
        yield Hosts(f"{NETWORK}.1", key, tuple(made))
    finally:
        try:
            for host in made:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(_init_of(host.process), signal.SIGKILL)
                host.process.kill()
                host.process.wait()
            for host in made:
                _gone(host)
        finally:
            _ip("link", "delete", BRIDGE)


def _host(number: int, folder: Path, server: Path, key: Path) -> Host:
    name, address = f"host{number}", f"{NETWORK}.{10 + number}"
    own = folder / name
    home = own / "home"
    home.mkdir(parents=True)
    shutil.copytree(server, home / ".sshd", symlinks=True)
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(home / ".sshd" / "key")], check=True
    )
    (home / ".sshd" / "config").write_text(CONFIG)
    (home / ".sshd" / "authorized").write_text(key.with_suffix(".pub").read_text())
    (home / ".bashrc").write_text(f"export PATH={Path(sys.executable).parent}:$PATH\n")
    (home / ".profile").write_text(". ~/.bashrc\n")
    (own / "passwd").write_text(
        "root:x:0:0:root:/run/home:/bin/bash\nsshd:x:101:65534::/run/sshd:/usr/sbin/nologin\n"
    )
    (own / "shadow").write_text("root:*:19000:0:99999:7:::\nsshd:*:19000:0:99999:7:::\n")
    kept = [
        str(path)
        for path in (Path(__file__).parents[2], Path(sys.prefix), Path(sys.base_prefix))
        if path.is_relative_to("/tmp")
    ]
    triplet = f"{os.uname().machine}-linux-gnu"
    script = INIT.format(address=address, name=name, folder=own, kept=" ".join(kept), triplet=triplet)
    # NOTE: keep --pid: `ray stop` ends every Ray process that it sees, without it also those of this machine.
    command = [
        "unshare",
        "--mount",
        "--pid",
        "--net",
        "--uts",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "sh",
        "-c",
        script,
    ]
    with (own / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    link = f"tf-{name}"
    _ip(
        "link",
        "add",
        link,
        "master",
        BRIDGE,
        "type",
        "veth",
        "peer",
        "name",
        "eth0",
        "netns",
        str(_init_of(process)),
    )
    _ip("link", "set", link, "up")
    return Host(address, process, own)


def _init_of(process: subprocess.Popen[bytes]) -> int:
    """The host's first process, once it has its own namespaces."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    deadline = time.monotonic() + 30
    while True:
        assert process.poll() is None, "a host did not start"
        for child in children.read_text().split():
            if Path(f"/proc/{child}/ns/net").readlink() != Path("/proc/self/ns/net").readlink():
                return int(child)
        assert time.monotonic() < deadline, "a host did not start"
        time.sleep(0.02)


def _gone(host: Host) -> None:
    """Wait until the kernel has removed the host's network link."""
    deadline = time.monotonic() + 30
    while Path(f"/sys/class/net/tf-{host.folder.name}").exists():
        assert time.monotonic() < deadline, f"{host.folder.name} does not go away"
        time.sleep(0.05)


def _answers(host: Host) -> None:
    import socket

    deadline = time.monotonic() + 30
    while True:
        with contextlib.suppress(OSError), socket.create_connection((host.address, 22), 1):
            return
        assert host.process.poll() is None, (host.folder / "log").read_text()
        assert time.monotonic() < deadline, (host.folder / "log").read_text()
        time.sleep(0.1)


def _sshd(folder: Path) -> Path:
    if not shutil.which("rsync") or not shutil.which("ssh"):
        pytest.skip("hosts for ray up need the packages openssh-client and rsync")
    return unpacked(folder, *PACKAGES)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"
